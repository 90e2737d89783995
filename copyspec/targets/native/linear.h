/* What the files of the module `_linear` share: a product, and who multiplies it. */

#ifndef COPYSPEC_LINEAR_H
#define COPYSPEC_LINEAR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define MOST_ROWS 128 /* of x: more are no longer limited by reading the weights */
#define PANEL 32      /* outputs come in multiples of it */

#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) || __GNUC__ >= 10)
#define HAS_KERNELS 1
#else
#define HAS_KERNELS 0
#endif

typedef enum { FLOAT32 = 0, BFLOAT16 = 1 } Kind;

typedef struct {
    Kind kind;
    const char *x, *weight, *bias; /* [rows, in], [out, in], [out] or NULL */
    char *y;                       /* [rows, out] */
    Py_ssize_t rows, out, in;
    int threads;
    void *scratch; /* of the kernel, read by all threads */
} Product;

typedef struct {
    const char *instructions;
    int (*is_supported)(Kind kind); /* by this processor */
    /* Bytes of scratch memory that a product needs, and what is written there before threads start; may be NULL. */
    size_t (*scratch_size)(const Product *product);
    void (*prepare)(Product *product);
    /* Outputs `first` to `last`, both multiples of PANEL. */
    void (*multiply)(const Product *product, Py_ssize_t first, Py_ssize_t last);
} Kernel;

#if HAS_KERNELS
extern const Kernel AVX512_KERNEL, AVX2_KERNEL;
#endif

#endif

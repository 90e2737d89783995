/* Declarations shared by the files of the module `_linear`: a product, and the kernels that compute it. */

#ifndef COPYSPEC_LINEAR_H
#define COPYSPEC_LINEAR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define MAX_ROWS 128 /* of x: with more rows the time is not bounded by reading the weights */
#define PANEL 32     /* the number of outputs is a multiple of it */

#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) || __GNUC__ >= 10)
#define HAS_KERNELS 1
#else
#define HAS_KERNELS 0
#endif

typedef struct {
    const float *x, *bias; /* [rows, in], [out] or NULL */
    const void *weight;    /* [out, in] of float32; packed: [out / PANEL, in / 2, PANEL] units */
    int is_packed;         /* a unit is two adjacent inputs in bfloat16 */
    float *y;              /* [rows, out] */
    Py_ssize_t rows, out, in;
    int threads;
} Product;

typedef struct {
    const char *instructions;
    int (*is_supported)(void); /* whether this processor supports it */
    /* Compute outputs first .. last - 1; both are multiples of PANEL. */
    void (*multiply)(const Product *product, Py_ssize_t first, Py_ssize_t last);
} Kernel;

/* The kernel for this processor; NULL if there is none. */
const Kernel *kernel(void);

/* Get an array's buffer; check its dimensions, and that its format is one of `formats`. Returns -1 with an error set. */
int take(Py_buffer *buffer, const char *name, PyObject *array, int dimensions, int writable, const char *formats);

/* Take the weight and the bias, an array or None, of `product` into buffers to be released; those that were not taken
   have no `obj`. Returns -1 with an error set. */
int take_weight(Product *product, Py_buffer *weight, Py_buffer *bias, PyObject *weight_array, PyObject *bias_array);

/* Check the sizes and addresses of a product. Returns -1 with an error set. */
int check_product(const Product *product);

/* OpenMP's, of the process; `run_parallel` is NULL where there is none, and then there is one thread. */
typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);
typedef int (*Number)(void);
extern Parallel run_parallel;
extern Number thread_number, thread_count;
extern void (*wait_for_threads)(void); /* a barrier of all threads of the region */

#if HAS_KERNELS
extern const Kernel AVX512_KERNEL, AVX2_KERNEL;
#endif

#endif

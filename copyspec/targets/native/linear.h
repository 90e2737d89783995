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

typedef enum { FLOAT32 = 0, BFLOAT16 = 1 } Kind;

typedef struct {
    Kind kind;
    const char *x, *weight, *bias; /* [rows, in], [out, in], [out] or NULL */
    /* weight: [out / PANEL, in / 2, PANEL] units of 32 bits, each two adjacent inputs in bfloat16, in the order that the
       kernel's `place` says */
    int is_packed;
    char *y;                       /* [rows, out] */
    Py_ssize_t rows, out, in;
    Py_ssize_t apart; /* K block: inputs per partial sum, for kernels that add in oneDNN's order; a multiple of 64 */
    int threads;
    void *scratch; /* memory of the kernel, read by all threads */
} Product;

typedef struct {
    const char *instructions;
    int (*is_supported)(Kind kind); /* whether this processor supports it */
    int (*packs)(Kind kind);        /* whether it is faster with packed weights */
    /* Where a unit stands among the `units` of its output in packed weights. */
    Py_ssize_t (*place)(Kind kind, Py_ssize_t unit, Py_ssize_t units);
    /* Scratch memory that a product needs, in bytes, and how it is filled before threads start; may be NULL. */
    size_t (*scratch_size)(const Product *product);
    void (*prepare)(Product *product);
    /* Compute outputs first .. last - 1; both are multiples of PANEL. */
    void (*multiply)(const Product *product, Py_ssize_t first, Py_ssize_t last);
} Kernel;

/* The kernel for this processor; NULL if there is none. */
const Kernel *kernel_for(Kind kind);

/* Get an array's buffer; check its dimensions, and that its format is one of `formats`. Returns -1 with an error set. */
int take(Py_buffer *buffer, const char *name, PyObject *array, int dimensions, int writable, const char *formats);

/* Take the weight and the bias, an array or None, of `product`, whose `kind` is set, into buffers to be released; those
   that were not taken have no `obj`. Returns -1 with an error set. */
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
/* Parts of AVX512_KERNEL. */
void avx512_multiply_floats(const Product *product, Py_ssize_t first, Py_ssize_t last);
void avx512_multiply_packed(const Product *product, Py_ssize_t first, Py_ssize_t last);
/* Parts of AVX2_KERNEL. */
void avx2_multiply_packed(const Product *product, Py_ssize_t first, Py_ssize_t last);
void avx2_multiply_packed_bfloat16(const Product *product, Py_ssize_t first, Py_ssize_t last);
Py_ssize_t avx2_bfloat16_place(Py_ssize_t unit, Py_ssize_t units);
/* Inputs first .. last - 1 of a row of x, both even, as packed weights are multiplied by them. */
void avx2_bfloat16_arrange(float *y, const uint16_t *x, Py_ssize_t first, Py_ssize_t last, Py_ssize_t in);
#endif

#endif

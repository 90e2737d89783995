/* The module `_linear`: y = x W^T + b for few rows of x, with weights as PyTorch stores them.

   A decoding pass multiplies a few tokens by every weight of a model, so it takes at least the time to read the weights
   once. General matrix products take longer from two rows on: they copy the weights first, or read them more than once.
   avx512.c and avx2.c read them once. Threads come from OpenMP's GNU interface if the process has loaded it, as PyTorch
   does. */

#include "linear.h"

#include <string.h>

#define VERSION 5 /* of the arguments and the order of sums; must equal VERSION in linears.py */

#if HAS_KERNELS

#include <dlfcn.h>

typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);
typedef int (*Number)(void);
static Parallel parallel; /* OpenMP's GOMP_parallel; NULL: one thread */
static Number thread_number, thread_count;

static void
find_threads(void)
{
    /* A union, since ISO C cannot convert an object pointer to a function pointer. */
    union { void *found; Parallel parallel; Number number; } name;
    name.found = dlsym(RTLD_DEFAULT, "omp_get_thread_num");
    thread_number = name.number;
    name.found = dlsym(RTLD_DEFAULT, "omp_get_num_threads");
    thread_count = name.number;
    name.found = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    parallel = thread_number != NULL && thread_count != NULL ? name.parallel : NULL;
}

static const Kernel *
kernel_for(Kind kind)
{
    return AVX512_KERNEL.is_supported(kind) ? &AVX512_KERNEL : AVX2_KERNEL.is_supported(kind) ? &AVX2_KERNEL : NULL;
}

static void
multiply_part(void *given)
{
    const Product *p = given;
    Py_ssize_t panels = p->out / PANEL, number = thread_number(), count = thread_count(); /* can be less than asked */
    kernel_for(p->kind)->multiply(p, panels * number / count * PANEL, panels * (number + 1) / count * PANEL);
}

/* Returns -1 if out of memory. */
static int
multiply_all(Product *p)
{
    const Kernel *kernel = kernel_for(p->kind);
    size_t size = kernel->scratch_size != NULL ? kernel->scratch_size(p) : 0;
    if (size > 0 && (p->scratch = PyMem_RawMalloc(size)) == NULL) {
        return -1;
    }
    if (kernel->prepare != NULL) {
        kernel->prepare(p);
    }
    if (p->threads > 1 && p->out > PANEL && parallel != NULL) {
        parallel(multiply_part, p, (unsigned)p->threads, 0);
    }
    else {
        kernel->multiply(p, 0, p->out);
    }
    PyMem_RawFree(p->scratch);
    return 0;
}

#else

static const Kernel *
kernel_for(Kind kind)
{
    (void)kind;
    return NULL;
}

static void
find_threads(void)
{
}

static int
multiply_all(Product *p)
{
    (void)p;
    return 0;
}

#endif

/* Get an array's buffer; check its dimensions, and that its format is the first array's. */
static int
take(Py_buffer *buffer, const char *name, PyObject *array, int dimensions, int writable, char *format)
{
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(array, buffer, flags) < 0) {
        return -1;
    }
    const char *found = buffer->format != NULL ? buffer->format : "B";
    Py_ssize_t size = *found == 'f' ? 4 : 2;
    if (strlen(found) != 1 || (*found != 'f' && *found != 'H') || buffer->itemsize != size) {
        PyErr_Format(PyExc_ValueError, "%s has format '%s'; 'f' is float32, 'H' the bits of bfloat16", name, found);
    }
    else if (*format != 0 && *found != *format) {
        PyErr_Format(PyExc_ValueError, "%s has format '%c', another array '%c'", name, *found, *format);
    }
    else if (buffer->ndim != dimensions) {
        PyErr_Format(PyExc_ValueError, "%s has %d dimensions instead of %d", name, buffer->ndim, dimensions);
    }
    else if (size != 0 && (uintptr_t)buffer->buf % (uintptr_t)size != 0) {
        PyErr_Format(PyExc_ValueError, "%s starts between two numbers", name);
    }
    else {
        *format = *found;
        return 0;
    }
    PyBuffer_Release(buffer);
    return -1;
}

static int
check(const Product *p, const Py_buffer *y, const Py_buffer *x, const Py_buffer *weight, const Py_buffer *bias)
{
    Py_ssize_t whole = p->kind == BFLOAT16 ? 32 : 16;
    if (x->shape[1] != p->in || y->shape[1] != p->out || y->shape[0] != p->rows ||
        (bias != NULL && bias->shape[0] != p->out)) {
        PyErr_SetString(PyExc_ValueError, "shapes do not fit: x [m, k], weight [n, k], bias [n], y [m, n]");
    }
    else if (p->rows < 1 || p->rows > MOST_ROWS) {
        PyErr_Format(PyExc_ValueError, "x has %zd rows; 1 to %d are multiplied", p->rows, MOST_ROWS);
    }
    else if (p->out < PANEL || p->out % PANEL != 0 || p->in < whole || p->in % whole != 0) {
        PyErr_Format(PyExc_ValueError, "weight is [%zd, %zd]; multiples of %d and %zd are multiplied", p->out, p->in,
                     PANEL, whole);
    }
    else if (p->apart < 64 || p->apart % 64 != 0) {
        PyErr_Format(PyExc_ValueError, "apart is %zd; it is a multiple of 64", p->apart);
    }
    else if (p->threads < 1) {
        PyErr_Format(PyExc_ValueError, "threads is %d; it is a number from 1", p->threads);
    }
    else if (kernel_for(p->kind) == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this processor cannot: instructions() is empty");
    }
    else {
        return 0;
    }
    (void)weight;
    return -1;
}

static PyObject *
linear(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *y_array, *x_array, *weight_array, *bias_array, *result = NULL;
    Py_buffer y, x, weight, bias;
    Product p = {0};
    char format = 0;
    if (!PyArg_ParseTuple(args, "OOOOin", &y_array, &x_array, &weight_array, &bias_array, &p.threads, &p.apart)) {
        return NULL;
    }
    if (take(&y, "y", y_array, 2, 1, &format) < 0) {
        return NULL;
    }
    if (take(&x, "x", x_array, 2, 0, &format) < 0) {
        goto no_x;
    }
    if (take(&weight, "weight", weight_array, 2, 0, &format) < 0) {
        goto no_weight;
    }
    if (bias_array != Py_None && take(&bias, "bias", bias_array, 1, 0, &format) < 0) {
        goto no_bias;
    }
    p.kind = format == 'H' ? BFLOAT16 : FLOAT32;
    p.x = x.buf, p.weight = weight.buf, p.y = y.buf;
    p.bias = bias_array != Py_None ? bias.buf : NULL;
    p.rows = x.shape[0], p.out = weight.shape[0], p.in = weight.shape[1];
    if (check(&p, &y, &x, &weight, p.bias != NULL ? &bias : NULL) == 0) {
        int failed;
        Py_BEGIN_ALLOW_THREADS
        failed = multiply_all(&p);
        Py_END_ALLOW_THREADS
        result = failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
    }
    if (bias_array != Py_None) {
        PyBuffer_Release(&bias);
    }
no_bias:
    PyBuffer_Release(&weight);
no_weight:
    PyBuffer_Release(&x);
no_x:
    PyBuffer_Release(&y);
    return result;
}

static PyObject *
instructions(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *format;
    if (!PyArg_ParseTuple(args, "s", &format)) {
        return NULL;
    }
    if (strcmp(format, "f") != 0 && strcmp(format, "H") != 0) {
        PyErr_Format(PyExc_ValueError, "format is \"%s\"; 'f' is float32, 'H' the bits of bfloat16", format);
        return NULL;
    }
    const Kernel *kernel = kernel_for(*format == 'H' ? BFLOAT16 : FLOAT32);
    return PyUnicode_FromString(kernel != NULL ? kernel->instructions : "");
}

PyDoc_STRVAR(linear_doc, "linear(y, x, weight, bias, threads, apart)\n\n"
                         "Writes x W^T + b into y, [m, n]. Arrays of float32 or of the bits of bfloat16; bias may be "
                         "None. `apart`: inputs per separate sum, for AVX-512 and bfloat16.");
PyDoc_STRVAR(instructions_doc, "instructions(format)\n\n"
                               "Those of this processor that are used: 'f' float32, 'H' bfloat16; \"\" where it has none.");

static PyMethodDef methods[] = {
    {"linear", linear, METH_VARARGS, linear_doc},
    {"instructions", instructions, METH_VARARGS, instructions_doc},
    {NULL, NULL, 0, NULL},
};

static int
fill_module(PyObject *module)
{
    find_threads();
    return PyModule_AddIntMacro(module, VERSION) < 0 || PyModule_AddIntMacro(module, MOST_ROWS) < 0 ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill_module},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_linear", "Linear layers for few rows.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__linear(void)
{
    return PyModuleDef_Init(&definition);
}

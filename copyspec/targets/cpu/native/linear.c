/* The module `_linear`: y = x W^T + b for few rows of x, with weights as PyTorch stores them.

   A decoding pass multiplies a few tokens by every weight of a model, so it takes at least the time to read the weights
   once. General matrix products take longer from two rows on: they copy the weights first, or read them more than once.
   avx512.c and avx2.c read them once. Threads come from OpenMP's GNU interface if the process has loaded it, as PyTorch
   does. */

#include "layer.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define VERSION 15 /* of the arguments and the order of sums; must equal VERSION in compiled.py */

Parallel run_parallel;
Number thread_number, thread_count;
void (*wait_for_threads)(void);

#if HAS_KERNELS

#include <dlfcn.h>

static void
find_threads(void)
{
    /* A union, since ISO C cannot convert an object pointer to a function pointer. */
    union { void *found; Parallel parallel; Number number; void (*wait)(void); } name;
    name.found = dlsym(RTLD_DEFAULT, "omp_get_thread_num");
    thread_number = name.number;
    name.found = dlsym(RTLD_DEFAULT, "omp_get_num_threads");
    thread_count = name.number;
    name.found = dlsym(RTLD_DEFAULT, "GOMP_barrier");
    wait_for_threads = name.wait;
    name.found = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    const int has_all = thread_number != NULL && thread_count != NULL && wait_for_threads != NULL;
    run_parallel = has_all ? name.parallel : NULL;
}

const Kernel *
kernel(void)
{
    return AVX512_KERNEL.is_supported() ? &AVX512_KERNEL : AVX2_KERNEL.is_supported() ? &AVX2_KERNEL : NULL;
}

static void
multiply_part(void *product)
{
    const Product *p = product;
    Py_ssize_t panels = p->out / PANEL, number = thread_number(), count = thread_count(); /* at most p->threads */
    kernel()->multiply(p, panels * number / count * PANEL, panels * (number + 1) / count * PANEL);
}

static void
multiply_all(Product *p)
{
    if (p->threads > 1 && p->out > PANEL && run_parallel != NULL) {
        run_parallel(multiply_part, p, (unsigned)p->threads, 0);
    }
    else {
        kernel()->multiply(p, 0, p->out);
    }
}

#else

const Kernel *
kernel(void)
{
    return NULL;
}

static void
find_threads(void)
{
}

static void
multiply_all(Product *p)
{
    (void)p;
}

#endif

int
take(Py_buffer *buffer, const char *name, PyObject *array, int dimensions, int writable, const char *formats)
{
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(array, buffer, flags) < 0) {
        return -1;
    }
    const char *found = buffer->format != NULL ? buffer->format : "B";
    Py_ssize_t size = *found == 'l' ? 8 : 4;
    if (strlen(found) != 1 || strchr(formats, *found) == NULL || buffer->itemsize != size) {
        PyErr_Format(PyExc_ValueError, "%s has format '%s', not one of '%s'; 'f' is float32, 'I' packed weights", name,
                     found, formats);
    }
    else if (buffer->ndim != dimensions) {
        PyErr_Format(PyExc_ValueError, "%s has %d dimensions instead of %d", name, buffer->ndim, dimensions);
    }
    else if ((uintptr_t)buffer->buf % (uintptr_t)size != 0) {
        PyErr_Format(PyExc_ValueError, "%s starts between two numbers", name);
    }
    else {
        return 0;
    }
    PyBuffer_Release(buffer);
    return -1;
}

int
take_weight(Product *p, Py_buffer *weight, Py_buffer *bias, PyObject *weight_array, PyObject *bias_array)
{
    if (take(weight, "weight", weight_array, 2, 0, "fI") < 0) {
        return -1;
    }
    if (bias_array != Py_None && take(bias, "bias", bias_array, 1, 0, "f") < 0) {
        return -1;
    }
    p->is_packed = *weight->format == 'I';
    p->weight = weight->buf, p->bias = bias->buf;
    p->out = weight->shape[0], p->in = weight->shape[1] * (p->is_packed ? 2 : 1);
    if (p->bias != NULL && bias->shape[0] != p->out) {
        PyErr_Format(PyExc_ValueError, "bias has %zd numbers for %zd outputs", bias->shape[0], p->out);
        return -1;
    }
    return 0;
}

int
check_product(const Product *p)
{
    Py_ssize_t whole = p->is_packed ? 32 : 16;
    if (p->rows < 1) {
        PyErr_Format(PyExc_ValueError, "rows is %zd; it is a number from 1", p->rows);
    }
    else if (p->x == NULL || p->y == NULL || ((uintptr_t)p->x | (uintptr_t)p->y) % 4 != 0) {
        PyErr_SetString(PyExc_ValueError, "x or y starts at no number");
    }
    else if (p->out < PANEL || p->out % PANEL != 0 || p->in < whole || p->in % whole != 0) {
        PyErr_Format(PyExc_ValueError, "weight is [%zd, %zd]; multiples of %d and %zd are multiplied", p->out, p->in,
                     PANEL, whole);
    }
    else if (p->threads < 1) {
        PyErr_Format(PyExc_ValueError, "threads is %d; it is a number from 1", p->threads);
    }
    else if (kernel() == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this processor cannot: instructions() is empty");
    }
    else {
        return 0;
    }
    return -1;
}

/* Multiply MAX_ROWS rows of x at a time. */
static void
multiply_parts(Product p)
{
    const Py_ssize_t rows = p.rows;
    for (Py_ssize_t row = 0; row < rows; row += MAX_ROWS) {
        p.rows = rows - row < MAX_ROWS ? rows - row : MAX_ROWS;
        multiply_all(&p);
        p.x += p.rows * p.in;
        p.y += p.rows * p.out;
    }
}

static PyObject *
linear(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *weight_array, *bias_array, *result = NULL;
    Py_buffer weight = {0}, bias = {0};
    Product p = {0};
    unsigned long long y, x;
    if (!PyArg_ParseTuple(args, "KKnOOi", &y, &x, &p.rows, &weight_array, &bias_array, &p.threads)) {
        return NULL;
    }
    p.x = (const float *)(uintptr_t)x, p.y = (float *)(uintptr_t)y;
    if (take_weight(&p, &weight, &bias, weight_array, bias_array) == 0 && check_product(&p) == 0) {
        Py_BEGIN_ALLOW_THREADS
        multiply_parts(p);
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&bias);
    PyBuffer_Release(&weight);
    return result;
}

/* Where a unit of an output's weights stands in packed ones. */
static Py_ssize_t
unit_at(Py_ssize_t output, Py_ssize_t unit, Py_ssize_t units)
{
    return (output / PANEL * units + unit) * PANEL + output % PANEL;
}

/* The unit of two weights that start at `at`. Returns those of its bits that bfloat16 has no place for. */
static inline uint32_t
unit_of(const float *weight, Py_ssize_t at, uint32_t *unit)
{
    uint32_t bits[2];
    memcpy(bits, weight + at, sizeof bits);
    *unit = bits[0] >> 16 | (bits[1] & 0xffff0000);
    return (bits[0] | bits[1]) & 0xffff;
}

/* Returns 0 if a weight is no bfloat16. */
static int
pack_all(uint32_t *packed, const float *weight, Py_ssize_t out, Py_ssize_t in)
{
    uint32_t lost = 0;
    for (Py_ssize_t output = 0; output < out && lost == 0; output += PANEL) {
        for (Py_ssize_t input = 0; input < in; input += 2) {
            uint32_t *to = packed + unit_at(output, input / 2, in / 2);
            for (Py_ssize_t i = 0; i < PANEL; i++) {
                lost |= unit_of(weight, (output + i) * in + input, to + i);
            }
        }
    }
    return lost == 0;
}

#define SPARSE 61 /* one of so many outputs is compared, and one of so many of its units, not the same of each */

static int
holds_all(uint32_t *packed, const float *weight, Py_ssize_t out, Py_ssize_t in)
{
    for (Py_ssize_t output = 0; output < out; output += SPARSE) {
        for (Py_ssize_t input = 2 * (output / SPARSE % SPARSE); input < in; input += 2 * SPARSE) {
            const uint32_t held = packed[unit_at(output, input / 2, in / 2)];
            uint32_t unit;
            if (unit_of(weight, output * in + input, &unit) != 0 || unit != held) {
                return 0;
            }
        }
    }
    return 1;
}

/* Parse the arguments (packed, weight) and call `use`. */
static PyObject *
with_packed(PyObject *args, int writable, int (*use)(uint32_t *, const float *, Py_ssize_t, Py_ssize_t))
{
    PyObject *packed_array, *weight_array, *result = NULL;
    Py_buffer packed, weight;
    if (!PyArg_ParseTuple(args, "OO", &packed_array, &weight_array) ||
        take(&packed, "packed", packed_array, 2, writable, "I") < 0) {
        return NULL;
    }
    if (take(&weight, "weight", weight_array, 2, 0, "f") == 0) {
        Py_ssize_t out = weight.shape[0], in = weight.shape[1];
        if (out % PANEL != 0 || in % 32 != 0 || packed.shape[0] != out || packed.shape[1] != in / 2) {
            PyErr_Format(PyExc_ValueError, "shapes do not fit: weight [n, k], packed [n, k / 2], multiples of %d and 32",
                         PANEL);
        }
        else {
            int found;
            Py_BEGIN_ALLOW_THREADS
            found = use(packed.buf, weight.buf, out, in);
            Py_END_ALLOW_THREADS
            result = PyBool_FromLong(found);
        }
        PyBuffer_Release(&weight);
    }
    PyBuffer_Release(&packed);
    return result;
}

static PyObject *
pack(PyObject *Py_UNUSED(module), PyObject *args)
{
    return with_packed(args, 1, pack_all);
}

static PyObject *
holds(PyObject *Py_UNUSED(module), PyObject *args)
{
    return with_packed(args, 0, holds_all);
}

static PyObject *
instructions(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args))
{
    return PyUnicode_FromString(kernel() != NULL ? kernel()->instructions : "");
}

/* Some hypervisors announce the instructions of tiles (AMX) but no palette to configure them with. */
static PyObject *
lacks_palettes(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args))
{
    int lacks = 0;
#if defined(__x86_64__)
    unsigned most = __get_cpuid_max(0, NULL), a = 0, b, c, d = 0;
    if (most >= 7) {
        __cpuid_count(7, 0, a, b, c, d);
    }
    if (d & 1u << 24) {
        a = 0;
        if (most >= 0x1d) {
            __cpuid_count(0x1d, 0, a, b, c, d);
        }
        lacks = a == 0;
    }
#endif
    return PyBool_FromLong(lacks);
}

/* Documented in ../_linear.pyi. */
static PyMethodDef methods[] = {
    {"linear", linear, METH_VARARGS, NULL},
    {"layer", run_layer, METH_VARARGS, NULL},
    {"pack", pack, METH_VARARGS, NULL},
    {"holds", holds, METH_VARARGS, NULL},
    {"lacks_palettes", lacks_palettes, METH_NOARGS, NULL},
    {"instructions", instructions, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int
fill_module(PyObject *module)
{
    find_threads();
    return PyModule_AddIntMacro(module, VERSION);
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

/* The module `_linear`: y = x W^T + b for few rows of x, weights as PyTorch stores them.

   A pass of decoding multiplies a few tokens with every weight of a model, so its time is that of reading the weights
   once. General matrix products leave that limit at two rows: they copy weights first, or read them more than once.
   Here panels of 32 outputs go through the first cache: 32 units of their inputs at a time are transposed there, so that
   one register holds one input's weights of 16 outputs, and are multiplied with all rows of x at once. Sums run over
   the inputs in their order, one after the other, so that a row's result does not depend on the number of rows. In
   bfloat16 every FOLD inputs have a sum of their own, which is the order of oneDNN, to the last bit.

   Threads are those of OpenMP's GNU interface where the process has it, as with PyTorch. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define VERSION 1 /* of what the function takes: linears.py knows the same */

#define MOST_ROWS 128 /* of x: more are no longer limited by reading the weights */
#define PANEL 32      /* outputs at a time: two registers */
#define STEP 32       /* 32-bit units of their weights at a time */
#define BLOCK 8       /* rows of x in registers */
#define FOLD 256      /* units of bfloat16 that are summed by themselves, a multiple of STEP */

typedef enum { FLOAT32 = 0, BFLOAT16 = 1 } Kind;

typedef struct {
    Kind kind;
    const char *x, *weight, *bias; /* [rows, in], [out, in], [out] or NULL */
    char *y;                       /* [rows, out] */
    Py_ssize_t rows, out, in;
    int threads;
} Product;

#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) || __GNUC__ >= 10)

#include <dlfcn.h>
#include <immintrin.h>

#define FAST __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define FAST_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))

static int
is_supported(Kind kind)
{
    __builtin_cpu_init();
    int floats = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return floats && (kind == FLOAT32 || __builtin_cpu_supports("avx512bf16"));
}

/* 16 units of 16 outputs, `stride` bytes apart, to 16 outputs of 16 units, PANEL numbers apart. */
FAST static inline void
transpose(const char *weight, Py_ssize_t stride, float *panel)
{
    __m512i r[16], t[16];
    for (int i = 0; i < 16; i++) {
        r[i] = _mm512_loadu_si512(weight + i * stride);
    }
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        _mm512_store_si512(panel + i * PANEL, _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
        _mm512_store_si512(panel + (i + 8) * PANEL, _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
        _mm512_store_si512(panel + (i + 4) * PANEL, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
        _mm512_store_si512(panel + (i + 12) * PANEL, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
    }
}

/* Adds `count` units of ROWS rows of x, `stride` units apart, times the panel to the sums. A unit is a number of
   float32, or two neighbours of bfloat16. What lies `ahead` is fetched meanwhile: 128 bytes for each unit. */
#define ADD_FLOAT32(sum, unit, weights) sum = _mm512_fmadd_ps(_mm512_set1_ps(*(unit)), weights, sum)
#define ADD_BFLOAT16(sum, unit, weights)                                                                               \
    sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(_mm512_set1_ps(*(unit))),                                \
                           (__m512bh)_mm512_castps_si512(weights))

#define DEFINE_ADD(NAME, ROWS, TARGET, ADD)                                                                            \
    TARGET static void NAME##_##ROWS(float *sums, const float *panel, const float *x, Py_ssize_t stride, int count,    \
                                     const char *ahead)                                                                \
    {                                                                                                                  \
        __m512 low[ROWS], high[ROWS];                                                                                  \
        _Pragma("GCC unroll 8") for (int row = 0; row < ROWS; row++)                                                   \
        {                                                                                                              \
            low[row] = _mm512_load_ps(sums + PANEL * row);                                                             \
            high[row] = _mm512_load_ps(sums + PANEL * row + 16);                                                       \
        }                                                                                                              \
        for (int i = 0; i < count; i++) {                                                                              \
            _mm_prefetch(ahead + 128 * i, _MM_HINT_T1);                                                                \
            _mm_prefetch(ahead + 128 * i + 64, _MM_HINT_T1);                                                           \
            __m512 first = _mm512_load_ps(panel + PANEL * i), second = _mm512_load_ps(panel + PANEL * i + 16);         \
            _Pragma("GCC unroll 8") for (int row = 0; row < ROWS; row++)                                               \
            {                                                                                                          \
                ADD(low[row], x + row * stride + i, first);                                                            \
                ADD(high[row], x + row * stride + i, second);                                                          \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 8") for (int row = 0; row < ROWS; row++)                                                   \
        {                                                                                                              \
            _mm512_store_ps(sums + PANEL * row, low[row]);                                                             \
            _mm512_store_ps(sums + PANEL * row + 16, high[row]);                                                       \
        }                                                                                                              \
    }
#define DEFINE_ADDS(NAME, TARGET, ADD)                                                                                 \
    DEFINE_ADD(NAME, 1, TARGET, ADD)                                                                                   \
    DEFINE_ADD(NAME, 2, TARGET, ADD)                                                                                   \
    DEFINE_ADD(NAME, 3, TARGET, ADD)                                                                                   \
    DEFINE_ADD(NAME, 4, TARGET, ADD)                                                                                   \
    DEFINE_ADD(NAME, 5, TARGET, ADD)                                                                                   \
    DEFINE_ADD(NAME, 6, TARGET, ADD)                                                                                   \
    DEFINE_ADD(NAME, 7, TARGET, ADD)                                                                                   \
    DEFINE_ADD(NAME, 8, TARGET, ADD)
DEFINE_ADDS(floats, FAST, ADD_FLOAT32)
DEFINE_ADDS(brains, FAST_BF16, ADD_BFLOAT16)

typedef void (*Add)(float *, const float *, const float *, Py_ssize_t, int, const char *);
static const Add ADDS[2][BLOCK] = {
    {floats_1, floats_2, floats_3, floats_4, floats_5, floats_6, floats_7, floats_8},
    {brains_1, brains_2, brains_3, brains_4, brains_5, brains_6, brains_7, brains_8},
};

FAST static void
finish_floats(const Product *p, const float *sums, Py_ssize_t first)
{
    for (Py_ssize_t row = 0; row < p->rows; row++) {
        for (int at = 0; at < PANEL; at += 16) {
            __m512 sum = _mm512_load_ps(sums + PANEL * row + at);
            if (p->bias != NULL) {
                sum = _mm512_add_ps(sum, _mm512_loadu_ps((const float *)p->bias + first + at));
            }
            _mm512_storeu_ps((float *)p->y + row * p->out + first + at, sum);
        }
    }
}

FAST_BF16 static void
finish_brains(const Product *p, const float *sums, Py_ssize_t first)
{
    for (Py_ssize_t row = 0; row < p->rows; row++) {
        for (int at = 0; at < PANEL; at += 16) {
            __m512 sum = _mm512_load_ps(sums + PANEL * row + at);
            if (p->bias != NULL) {
                __m256i bias = _mm256_loadu_si256((const __m256i *)((const uint16_t *)p->bias + first + at));
                __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(bias), 16);
                sum = _mm512_add_ps(sum, _mm512_castsi512_ps(wide));
            }
            __m256i rounded = (__m256i)_mm512_cvtneps_pbh(sum);
            _mm256_storeu_si256((__m256i *)((uint16_t *)p->y + row * p->out + first + at), rounded);
        }
    }
}

/* Adds the sums to those before them, if any, and begins new ones. */
static void
fold(float *folded, float *sums, size_t count, int is_first)
{
    for (size_t i = 0; i < count; i++) {
        folded[i] = is_first ? sums[i] : folded[i] + sums[i];
        sums[i] = 0.0f;
    }
}

/* Outputs `first` to `last`, both multiples of PANEL. */
static void
multiply(const Product *p, Py_ssize_t first, Py_ssize_t last)
{
    float panel[STEP * PANEL] __attribute__((aligned(64)));
    float sums[MOST_ROWS * PANEL] __attribute__((aligned(64)));
    float folded[MOST_ROWS * PANEL] __attribute__((aligned(64)));
    const Py_ssize_t units = p->kind == BFLOAT16 ? p->in / 2 : p->in;
    const float *x = (const float *)p->x;
    for (; first < last; first += PANEL) {
        memset(sums, 0, sizeof(float) * PANEL * (size_t)p->rows);
        int folds = 0;
        const char *next = p->weight + 4 * (first + PANEL) * units; /* one piece of memory, as this panel */
        for (Py_ssize_t unit = 0; unit < units; unit += STEP) {
            if (p->kind == BFLOAT16 && unit > 0 && unit % FOLD == 0) {
                fold(folded, sums, PANEL * (size_t)p->rows, folds++ == 0);
            }
            int count = (int)(units - unit < STEP ? units - unit : STEP);
            for (int i = 0; i < count; i += 16) {
                for (int half = 0; half < PANEL; half += 16) {
                    transpose(p->weight + 4 * ((first + half) * units + unit + i), 4 * units, panel + PANEL * i + half);
                }
            }
            for (Py_ssize_t row = 0; row < p->rows; row += BLOCK) {
                Py_ssize_t rows = p->rows - row < BLOCK ? p->rows - row : BLOCK;
                ADDS[p->kind][rows - 1](sums + PANEL * row, panel, x + row * units + unit, units, count,
                                        next + 4 * unit * PANEL);
            }
        }
        if (folds > 0) {
            fold(folded, sums, PANEL * (size_t)p->rows, 0);
            memcpy(sums, folded, sizeof(float) * PANEL * (size_t)p->rows);
        }
        (p->kind == BFLOAT16 ? finish_brains : finish_floats)(p, sums, first);
    }
}

typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);
typedef int (*Number)(void);
static Parallel parallel; /* of OpenMP; NULL: one thread */
static Number thread_number, thread_count;

static void
find_threads(void)
{
    /* A union, since ISO C has no way from an object's address to a function's. */
    union { void *found; Parallel parallel; Number number; } name;
    name.found = dlsym(RTLD_DEFAULT, "omp_get_thread_num");
    thread_number = name.number;
    name.found = dlsym(RTLD_DEFAULT, "omp_get_num_threads");
    thread_count = name.number;
    name.found = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    parallel = thread_number != NULL && thread_count != NULL ? name.parallel : NULL;
}

static void
multiply_part(void *given)
{
    const Product *p = given;
    Py_ssize_t panels = p->out / PANEL, number = thread_number(), count = thread_count(); /* may be fewer than asked */
    multiply(p, panels * number / count * PANEL, panels * (number + 1) / count * PANEL);
}

static void
multiply_all(const Product *p)
{
    if (p->threads > 1 && p->out > PANEL && parallel != NULL) {
        parallel(multiply_part, (void *)p, (unsigned)p->threads, 0);
    }
    else {
        multiply(p, 0, p->out);
    }
}

#else

static int
is_supported(Kind kind)
{
    (void)kind;
    return 0;
}

static void
find_threads(void)
{
}

static void
multiply_all(const Product *p)
{
    (void)p;
}

#endif

/* Takes an array of so many dimensions; all arrays have the format of the first one. */
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
    else if (p->threads < 1) {
        PyErr_Format(PyExc_ValueError, "threads is %d; it is a number from 1", p->threads);
    }
    else if (!is_supported(p->kind)) {
        PyErr_SetString(PyExc_RuntimeError, "this processor cannot: ask is_supported");
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
    if (!PyArg_ParseTuple(args, "OOOOi", &y_array, &x_array, &weight_array, &bias_array, &p.threads)) {
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
        Py_BEGIN_ALLOW_THREADS
        multiply_all(&p);
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
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
supported(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *format;
    if (!PyArg_ParseTuple(args, "s", &format)) {
        return NULL;
    }
    if (strcmp(format, "f") != 0 && strcmp(format, "H") != 0) {
        PyErr_Format(PyExc_ValueError, "format is \"%s\"; 'f' is float32, 'H' the bits of bfloat16", format);
        return NULL;
    }
    return PyBool_FromLong(is_supported(*format == 'H' ? BFLOAT16 : FLOAT32));
}

PyDoc_STRVAR(linear_doc, "linear(y, x, weight, bias, threads)\n\n"
                         "Writes x W^T + b into y, [m, n]. Arrays of float32 or of the bits of bfloat16; bias may be "
                         "None.");
PyDoc_STRVAR(supported_doc, "is_supported(format)\n\nWhether this processor can: 'f' float32, 'H' bfloat16.");

static PyMethodDef methods[] = {
    {"linear", linear, METH_VARARGS, linear_doc},
    {"is_supported", supported, METH_VARARGS, supported_doc},
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

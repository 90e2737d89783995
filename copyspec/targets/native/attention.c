/* Attention of layers in bfloat16: its arguments, its threads, and the function `attention` to compare it with
   PyTorch's. */

#include "layer.h"

/* Take one array of numbers for each token. */
static const int64_t *
take_numbers(Py_buffer *buffer, const char *name, PyObject *given, int dimensions, Py_ssize_t rows)
{
    if (take(buffer, name, given, dimensions, 0, "l") < 0) {
        return NULL;
    }
    if (buffer->shape[0] != rows) {
        fail_layer(name);
        return NULL;
    }
    return buffer->buf;
}

/* Check what a token attends to, and count it. Returns -1 with an error set. */
static int
take_token(Attention *a, Py_ssize_t row, Py_ssize_t batch, Py_ssize_t columns)
{
    const int64_t place = a->places[row], start = a->starts[row], *path = a->paths + row * a->width;
    if (place < (row == 0 ? 0 : a->places[row - 1] + 1) || place >= batch * columns) {
        return fail_layer("places");
    }
    if (start < 0 || start > a->capacity) {
        return fail_layer("starts");
    }
    Py_ssize_t length = 0;
    while (length < a->width && path[length] >= 0) {
        if (path[length++] >= a->capacity) {
            return fail_layer("paths");
        }
    }
    a->seen[row] = start + length;
    a->of_batch[row] = place / columns;
    return length > 0 ? 0 : fail_layer("paths");
}

int
take_attention(Attention *a, AttentionArrays *arrays, PyObject *given, Py_ssize_t batch, Py_ssize_t columns,
               Py_ssize_t key_heads)
{
    PyObject *places, *starts, *paths;
    unsigned long long keys, values;
    if (!PyArg_ParseTuple(given, "KKnfOOOi", &keys, &values, &a->capacity, &a->scaling, &places, &starts, &paths,
                          &a->registers)) {
        return -1;
    }
    if (a->registers != 1 && a->registers != 2) {
        return fail_layer("registers");
    }
    a->keys = (uint16_t *)(uintptr_t)keys, a->values = (uint16_t *)(uintptr_t)values, a->key_heads = key_heads;
    if (a->keys == NULL || a->values == NULL || (keys | values) % sizeof(uint16_t) != 0 || a->capacity < 1) {
        return fail_layer("slots");
    }
    if (take(&arrays->places, "places", places, 1, 0, "l") < 0) {
        return -1;
    }
    a->places = arrays->places.buf, a->rows = arrays->places.shape[0];
    if (a->rows < 1 || a->rows > MAX_ROWS) {
        return fail_layer("rows");
    }
    if ((a->starts = take_numbers(&arrays->starts, "starts", starts, 1, a->rows)) == NULL ||
        (a->paths = take_numbers(&arrays->paths, "paths", paths, 2, a->rows)) == NULL) {
        return -1;
    }
    a->width = arrays->paths.shape[1];
    for (Py_ssize_t row = 0; row < a->rows; row++) {
        if (take_token(a, row, batch, columns) < 0) {
            return -1;
        }
    }
    return 0;
}

void
release_attention(AttentionArrays *arrays)
{
    PyBuffer_Release(&arrays->places);
    PyBuffer_Release(&arrays->starts);
    PyBuffer_Release(&arrays->paths);
}

#if HAS_KERNELS

const Bfloat16LayerKernel *
bfloat16_layer_kernel(void)
{
    return kernel_for(BFLOAT16) == &AVX512_KERNEL ? &AVX512_BFLOAT16_LAYER : &AVX2_BFLOAT16_LAYER;
}

void
share_attention(const Attention *a, const Heads *heads, const uint16_t *queries, uint16_t *outputs, float *space,
                Share share)
{
    const Py_ssize_t group = heads->queries / heads->keys, size = heads->size;
    /* Queries of one key head read its keys together, where there are enough parts for all threads. */
    const Py_ssize_t together = group < MAX_QUERIES ? group : MAX_QUERIES;
    const Py_ssize_t most = heads->rows * heads->keys < 4 * share.count ? 1 : together;
    const Py_ssize_t parts = (group + most - 1) / most, all = heads->rows * heads->keys * parts;
    float *memory = space + share.number * ATTENTION_SPACE(size);
    for (Py_ssize_t at = first_of(share, all); at < last_of(share, all); at++) {
        const Py_ssize_t row = at / (heads->keys * parts), key_head = at / parts % heads->keys, part = at % parts;
        const Py_ssize_t first = part * most, count = group - first < most ? group - first : most;
        const Py_ssize_t place = (row * heads->queries + key_head * group + first) * size;
        bfloat16_layer_kernel()->attend(a, (int)count, queries + place, outputs + place, row, key_head, size, memory);
    }
}

typedef struct {
    const Attention *attention;
    Heads heads;
    const uint16_t *queries;
    uint16_t *outputs;
    float *space;
    int threads;
} Call;

static void
run_call(void *given)
{
    const Call *call = given;
    share_attention(call->attention, &call->heads, call->queries, call->outputs, call->space, own_share(call->threads));
}

/* Returns -1 if out of memory. */
static int
run_threads(Call *call)
{
    call->threads = layer_threads(call->threads);
    call->space = PyMem_RawMalloc(sizeof(float) * (size_t)(call->threads * ATTENTION_SPACE(call->heads.size)));
    if (call->space == NULL) {
        return -1;
    }
    run_layer_threads(run_call, call, call->threads);
    PyMem_RawFree(call->space);
    return 0;
}

static int
has_attention(void)
{
    return kernel_for(BFLOAT16) != NULL && bfloat16_layer_kernel()->attend != NULL;
}

#else

static int
has_attention(void)
{
    return 0;
}

#endif

int
check_attention(void)
{
    if (!has_attention()) {
        PyErr_SetString(PyExc_RuntimeError, "this processor cannot: attends() is False");
        return -1;
    }
    return 0;
}

const char attends_doc[] = "attends()\n\n"
                           "Whether attention in bfloat16 is computed for this processor.";

PyObject *
attends(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args))
{
    return PyBool_FromLong(has_attention());
}

const char attention_doc[] =
    "attention(outputs, queries, heads, cache, threads)\n\n"
    "Writes the attention of the tokens of one row, [rows, heads, head size] of bfloat16, to the address outputs; "
    "queries is the address of as many numbers. heads: (rows, heads, key heads, head size); cache: as for "
    "`bfloat16_layer`.";

PyObject *
run_attention(PyObject *Py_UNUSED(module), PyObject *args)
{
    Attention attention = {0};
    AttentionArrays arrays = {0};
    PyObject *cache, *result = NULL;
    unsigned long long outputs, queries;
    Heads heads;
    int threads;
    if (!PyArg_ParseTuple(args, "KK(nnnn)O!i", &outputs, &queries, &heads.rows, &heads.queries, &heads.keys,
                          &heads.size, &PyTuple_Type, &cache, &threads) ||
        check_attention() < 0) {
        return NULL;
    }
    if (check_heads(heads.queries, heads.keys, heads.size) < 0) {
        return NULL;
    }
    if (outputs == 0 || queries == 0 || (outputs | queries) % sizeof(uint16_t) != 0 || threads < 1 || threads > 4096) {
        PyErr_SetString(PyExc_ValueError, "outputs or queries start at no number, or threads is no number from 1");
        return NULL;
    }
    if (take_attention(&attention, &arrays, cache, 1, heads.rows, heads.keys) == 0 &&
        (attention.rows == heads.rows ? 1 : fail_layer("rows") == 0)) {
#if HAS_KERNELS
        Call call = {&attention, heads, (const uint16_t *)(uintptr_t)queries, (uint16_t *)(uintptr_t)outputs, NULL,
                     threads};
        int failed;
        Py_BEGIN_ALLOW_THREADS
        failed = run_threads(&call);
        Py_END_ALLOW_THREADS
        result = failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
#endif
    }
    release_attention(&arrays);
    return result;
}

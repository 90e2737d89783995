/* Attention of layers in bfloat16: its arguments, its threads, and the function `attention` to compare it with
   PyTorch's. */

#include "layer.h"

int
take_attention(Attention *a, Py_buffer *buffer, PyObject *given, Py_ssize_t rows)
{
    PyObject *paths;
    unsigned long long keys, values;
    if (!PyArg_ParseTuple(given, "KKnnfOi", &keys, &values, &a->capacity, &a->start, &a->scaling, &paths,
                          &a->registers)) {
        return -1;
    }
    if (a->registers != 1 && a->registers != 2) {
        return fail_layer("registers");
    }
    a->keys = (uint16_t *)(uintptr_t)keys, a->values = (uint16_t *)(uintptr_t)values;
    if (rows < 1 || rows > MOST_ROWS) {
        return fail_layer("rows");
    }
    if (a->keys == NULL || a->values == NULL || (keys | values) % sizeof(uint16_t) != 0 || a->start < 0 ||
        a->start > a->capacity - rows) {
        return fail_layer("slots");
    }
    if (paths != Py_None) {
        if (take(buffer, "paths", paths, 2, 0, "l") < 0) {
            return -1;
        }
        a->paths = buffer->buf, a->width = buffer->shape[1];
        if (buffer->shape[0] != rows) {
            return fail_layer("paths");
        }
    }
    for (Py_ssize_t row = 0; row < rows; row++) {
        Py_ssize_t length = a->paths == NULL ? row + 1 : 0;
        while (a->paths != NULL && length < a->width && a->paths[row * a->width + length] >= 0) {
            if (a->paths[row * a->width + length++] >= a->start + rows) {
                return fail_layer("paths");
            }
        }
        a->seen[row] = a->start + length;
        if (a->seen[row] < 1) {
            return fail_layer("paths");
        }
    }
    return 0;
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
    const Py_ssize_t together = group < MOST_QUERIES ? group : MOST_QUERIES;
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
    "Writes the attention of tokens, [rows, heads, head size] of bfloat16, to the address outputs; queries is the "
    "address of as many numbers. heads: (rows, heads, key heads, head size); cache: as for `bfloat16_layer`.";

PyObject *
run_attention(PyObject *Py_UNUSED(module), PyObject *args)
{
    Attention attention = {0};
    Py_buffer paths = {0};
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
    if (take_attention(&attention, &paths, cache, heads.rows) == 0) {
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
    PyBuffer_Release(&paths);
    return result;
}

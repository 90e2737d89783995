/* The function `layer`: a Llama-style decoder layer in one call.

   Between its seven products such a layer runs some forty operations on a few tokens, each of which costs more to start
   than to compute. Here its threads go through it together and wait for each other where a part needs all of the one
   before. */

#include "layer.h"

#include <string.h>

#if HAS_KERNELS

static const LayerKernel *
layer_kernel(void)
{
    return kernel() == &AVX512_KERNEL ? &AVX512_LAYER : &AVX2_LAYER;
}

/* The input of a token. */
static const float *
input_of(const Layer *l, Py_ssize_t token)
{
    return l->x + (l->before + token) * l->hidden;
}

/* Rotary position embedding of one head: the first half of the turned numbers is paired with the second. */
static void
turn(float *head, const float *cosines, const float *sines, Py_ssize_t turned)
{
    const Py_ssize_t half = turned / 2;
    for (Py_ssize_t i = 0; i < half; i++) {
        float first = head[i], second = head[half + i];
        head[i] = first * cosines[i] - second * sines[i];
        head[half + i] = second * cosines[half + i] + first * sines[half + i];
    }
}

/* Normalise and turn a head of the queries or keys of a token. */
static void
turn_head(const Layer *l, float *head, Py_ssize_t token, const float *norm)
{
    if (norm != NULL) {
        layer_kernel()->normalise(head, head, norm, l->epsilon, l->head_size);
    }
    const Py_ssize_t at = (l->before + token) * l->turned;
    turn(head, l->cosines + at, l->sines + at, l->turned);
}

/* Turn the queries and keys of a token, and write its keys and values to the buffers of its row. */
static void
turn_token(const Layer *l, Py_ssize_t token)
{
    const Py_ssize_t size = l->head_size;
    const Row *row = l->table;
    while (row + 1 < l->table + l->batch && row[1].first <= l->before + token) {
        row++;
    }
    float *keys = (float *)(uintptr_t)row->keys, *values = (float *)(uintptr_t)row->values;
    const Py_ssize_t slot = (Py_ssize_t)(row->start - row->first) + l->before + token;
    for (Py_ssize_t head = 0; head < l->heads; head++) {
        turn_head(l, l->queries + (token * l->heads + head) * size, token, l->norms[OF_QUERIES]);
    }
    for (Py_ssize_t head = 0; head < l->key_heads; head++) {
        const Py_ssize_t from = (token * l->key_heads + head) * size, to = (head * row->capacity + slot) * size;
        turn_head(l, l->new_keys + from, token, l->norms[OF_KEYS]);
        memcpy(keys + to, l->new_keys + from, sizeof(float) * (size_t)size);
        memcpy(values + to, l->new_values + from, sizeof(float) * (size_t)size);
    }
}

/* Number of blocks of MAX_QUERIES queries of one key head and row. */
static Py_ssize_t
blocks_of(const Layer *l, const Row *row)
{
    return (count_in(l, row) * (l->heads / l->key_heads) + MAX_QUERIES - 1) / MAX_QUERIES;
}

/* A share of the attention: of the blocks of all rows and key heads. */
static void
attend_share(const Layer *l, Share share)
{
    Py_ssize_t all = 0, before = 0;
    for (const Row *row = l->table; row < l->table + l->batch; row++) {
        all += blocks_of(l, row) * l->key_heads;
    }
    const Py_ssize_t begin = first_of(share, all), end = last_of(share, all);
    float *scores = l->scores + share.number * MAX_QUERIES * l->stride;
    for (const Row *row = l->table; row < l->table + l->batch; row++) {
        const Py_ssize_t blocks = blocks_of(l, row), here = blocks * l->key_heads;
        const Py_ssize_t queries = count_in(l, row) * (l->heads / l->key_heads);
        const Py_ssize_t last = end - before < here ? end - before : here;
        for (Py_ssize_t at = begin > before ? begin - before : 0; at < last; at++) {
            const Py_ssize_t first = at % blocks * MAX_QUERIES, rest = queries - first;
            const int count = (int)(rest < MAX_QUERIES ? rest : MAX_QUERIES);
            layer_kernel()->attend(l, row, at / blocks, first, count, scores);
        }
        before += here;
    }
}

/* The outputs that a thread has multiplied. */
typedef struct {
    Py_ssize_t first, count;
} Outputs;

static Outputs
outputs_of(const Layer *l, Share share)
{
    const Py_ssize_t panels = l->hidden / PANEL, first = first_of(share, panels) * PANEL;
    return (Outputs){first, last_of(share, panels) * PANEL - first};
}

/* y += x, of `count` numbers. */
static void
add(float *y, const float *x, Py_ssize_t count)
{
    for (Py_ssize_t at = 0; at < count; at++) {
        y[at] = x[at] + y[at];
    }
}

static void
run_share(void *given)
{
    const Layer *l = given;
    const Share share = own_share(l->threads);
    const Py_ssize_t first = first_of(share, l->rows), last = last_of(share, l->rows);
    const Outputs own = outputs_of(l, share);
    for (Py_ssize_t row = first; row < last; row++) {
        layer_kernel()->normalise(l->normed + row * l->hidden, input_of(l, row), l->norms[BEFORE_ATTENTION], l->epsilon,
                                  l->hidden);
    }
    wait_in(share);
    multiply_share(l->products + QUERY, 3, share);
    wait_in(share);
    for (Py_ssize_t row = first; row < last; row++) {
        turn_token(l, row);
    }
    wait_in(share);
    attend_share(l, share);
    wait_in(share);
    multiply_share(l->products + OUTPUT, 1, share);
    for (Py_ssize_t row = 0; row < l->rows; row++) {
        add(l->sums + row * l->hidden + own.first, input_of(l, row) + own.first, own.count);
    }
    wait_in(share);
    for (Py_ssize_t row = first; row < last; row++) {
        layer_kernel()->normalise(l->normed + row * l->hidden, l->sums + row * l->hidden, l->norms[BEFORE_MLP],
                                  l->epsilon, l->hidden);
    }
    wait_in(share);
    multiply_share(l->products + GATE, 1, share);
    multiply_share(l->products + UP, 1, share);
    const Py_ssize_t panels = l->inner / PANEL, from = first_of(share, panels) * PANEL;
    const Py_ssize_t count = last_of(share, panels) * PANEL - from;
    for (Py_ssize_t row = 0; count > 0 && row < l->rows; row++) {
        layer_kernel()->activate(l->gate + row * l->inner + from, l->up + row * l->inner + from, count);
    }
    wait_in(share);
    multiply_share(l->products + DOWN, 1, share); /* to `normed`, which no thread reads any more */
    for (Py_ssize_t row = 0; row < l->rows; row++) {
        float *sums = l->sums + row * l->hidden + own.first;
        add(sums, l->normed + row * l->hidden + own.first, own.count);
    }
}

/* Lay out the scratch memory for MAX_ROWS tokens, and run the layer on that many at a time, which is possible as no
   token attends to later ones. Returns -1 if out of memory. */
static int
run_all(Layer *l)
{
    const Py_ssize_t most = l->tokens < MAX_ROWS ? l->tokens : MAX_ROWS;
    const size_t rows = (size_t)most, size = (size_t)l->head_size;
    const size_t queries = rows * (size_t)l->heads * size, keys = rows * (size_t)l->key_heads * size;
    const size_t hidden = rows * (size_t)l->hidden, inner = rows * (size_t)l->inner;
    Py_ssize_t used = 0;
    for (const Row *row = l->table; row < l->table + l->batch; row++) {
        used = row->used > used ? (Py_ssize_t)row->used : used;
    }
    l->threads = layer_threads(l->threads);
    l->stride = (used + 15) / 16 * 16;
    const size_t scores = (size_t)(l->threads * MAX_QUERIES * l->stride);
    float *memory = PyMem_RawMalloc(sizeof(float) * (hidden + 2 * queries + 2 * keys + 2 * inner + scores));
    if (memory == NULL) {
        return -1;
    }
    l->normed = memory;
    l->queries = l->normed + hidden;
    l->attended = l->queries + queries;
    l->new_keys = l->attended + queries;
    l->new_values = l->new_keys + keys;
    l->gate = l->new_values + keys;
    l->up = l->gate + inner;
    l->scores = l->up + inner;
    for (l->before = 0; l->before < l->tokens; l->before += MAX_ROWS) {
        l->rows = l->tokens - l->before < MAX_ROWS ? l->tokens - l->before : MAX_ROWS;
        l->sums = l->y + l->before * l->hidden;
        const float *const inputs[PRODUCTS] = {l->normed, l->normed, l->normed, l->attended, l->normed, l->normed,
                                               l->gate};
        float *const outputs[PRODUCTS] = {l->queries, l->new_keys, l->new_values, l->sums, l->gate, l->up, l->normed};
        for (int i = 0; i < PRODUCTS; i++) {
            l->products[i].rows = l->rows;
            l->products[i].x = inputs[i], l->products[i].y = outputs[i];
        }
        run_layer_threads(run_share, l, l->threads);
    }
    PyMem_RawFree(memory);
    return 0;
}

#else

static int
run_all(Layer *l)
{
    (void)l;
    return 0;
}

#endif

/* Check that the rows cover all tokens of the pass, and that these fit into their buffers, which have a slot to
   spare. */
static int
check_rows(const Layer *l)
{
    if (l->batch < 1 || l->table[0].first != 0) {
        return fail_layer("rows");
    }
    for (Py_ssize_t at = 0; at < l->batch; at++) {
        const Row *row = l->table + at;
        const int64_t end = at + 1 < l->batch ? row[1].first : l->tokens;
        if (end <= row->first || end > l->tokens) {
            return fail_layer("rows");
        }
        if (row->keys == 0 || row->values == 0 || row->start < 0 || row->used >= row->capacity || row->capacity % 4 != 0
            || row->start > row->used || row->used - row->start != end - row->first) {
            return fail_layer("slots");
        }
    }
    return 0;
}

const char layer_doc[] =
    "layer(y, x, tokens, parts, scaling, rows, threads)\n\n"
    "Writes the output of a Llama-style decoder layer, [tokens, hidden] of float32, to the address y; x is the "
    "address of its input. parts: (products, norms, sizes, rotary); products: (weight, bias) of queries, keys, values, "
    "output, gate, up and down; norms: weights of the two RMSNorms, and those of queries and keys or None; sizes: "
    "(heads, key heads, head size, epsilon); rotary: (address of cosines, of sines, turned numbers). rows: int64 "
    "[rows, 7]: first token, address of keys, of values, capacity, slots before the pass, slots after it, address of a "
    "mask [tokens of the row, slots] or 0.";

PyObject *
run_layer(PyObject *Py_UNUSED(module), PyObject *args)
{
    Layer l = {0};
    LayerArrays arrays = {0};
    Py_buffer rows = {0};
    PyObject *parts, *row_array, *result = NULL;
    unsigned long long y, x;
    if (!PyArg_ParseTuple(args, "KKnO!fOi", &y, &x, &l.tokens, &PyTuple_Type, &parts, &l.scaling, &row_array,
                          &l.threads)) {
        return NULL;
    }
    l.y = (float *)(uintptr_t)y, l.x = (const float *)(uintptr_t)x;
    if (take_layer(&l, &arrays, parts) == 0 && take(&rows, "rows", row_array, 2, 0, "l") == 0) {
        l.table = rows.buf, l.batch = rows.shape[0];
        if (rows.shape[1] != ROW_FIELDS) {
            fail_layer("rows");
        }
        else if (check_rows(&l) == 0) {
            int failed;
            Py_BEGIN_ALLOW_THREADS
            failed = run_all(&l);
            Py_END_ALLOW_THREADS
            result = failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
        }
    }
    PyBuffer_Release(&rows);
    release_layer(&arrays);
    return result;
}

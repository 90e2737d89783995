/* The function `layer`: a decoder layer of Llama's kind in one call.

   Between its seven products such a layer runs some forty operations on a few tokens, each of which costs more to start
   than to compute. Here its threads go through it together and wait for each other where a part needs all of the one
   before. */

#include "layer.h"

#include <string.h>

/* The tokens of a pass besides padding. */
typedef struct {
    Py_ssize_t count, *places;       /* among batch * columns */
    Py_ssize_t begins[MAX_ROWS + 1]; /* of the batch rows */
} Tokens;

#if HAS_KERNELS

static const LayerKernel *
layer_kernel(void)
{
    return kernel() == &AVX512_KERNEL ? &AVX512_LAYER : &AVX2_LAYER;
}

/* The row of x that a token has. */
static const float *
input_of(const Layer *l, Py_ssize_t row)
{
    return l->x + l->places[row] * l->hidden;
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

/* Normalise and turn a head of the queries or keys of the token at `place`. */
static void
turn_head(const Layer *l, float *head, Py_ssize_t place, const float *norm)
{
    if (norm != NULL) {
        layer_kernel()->normalise(head, head, norm, l->epsilon, l->head_size);
    }
    const Py_ssize_t at = place / l->columns * l->turned_step + place % l->columns * l->turned;
    turn(head, l->cosines + at, l->sines + at, l->turned);
}

/* Turn the queries and keys of a token, and write its keys and values to the cache. */
static void
turn_row(const Layer *l, Py_ssize_t row)
{
    const Py_ssize_t size = l->head_size, place = l->places[row];
    for (Py_ssize_t head = 0; head < l->heads; head++) {
        turn_head(l, l->queries + (row * l->heads + head) * size, place, l->norms[OF_QUERIES]);
    }
    const Py_ssize_t slot = l->slots != NULL ? (Py_ssize_t)l->slots[place] : l->start + place % l->columns;
    for (Py_ssize_t head = 0; head < l->key_heads; head++) {
        const Py_ssize_t from = (row * l->key_heads + head) * size;
        const Py_ssize_t to = ((place / l->columns * l->key_heads + head) * l->capacity + slot) * size;
        turn_head(l, l->new_keys + from, place, l->norms[OF_KEYS]);
        memcpy(l->keys + to, l->new_keys + from, sizeof(float) * (size_t)size);
        memcpy(l->values + to, l->new_values + from, sizeof(float) * (size_t)size);
    }
}

/* Blocks of MAX_QUERIES queries of one key head and batch row. */
static Py_ssize_t
blocks_of(const Layer *l, Py_ssize_t batch_row)
{
    const Py_ssize_t tokens = l->begins[batch_row + 1] - l->begins[batch_row];
    return (tokens * (l->heads / l->key_heads) + MAX_QUERIES - 1) / MAX_QUERIES;
}

/* A share of the attention: of the blocks of all batch rows and key heads. */
static void
attend_share(const Layer *l, Share share)
{
    Py_ssize_t all = 0, before = 0;
    for (Py_ssize_t row = 0; row < l->batch; row++) {
        all += blocks_of(l, row) * l->key_heads;
    }
    const Py_ssize_t begin = first_of(share, all), end = last_of(share, all);
    float *scores = l->scores + share.number * MAX_QUERIES * l->stride;
    for (Py_ssize_t row = 0; row < l->batch; row++) {
        const Py_ssize_t blocks = blocks_of(l, row), here = blocks * l->key_heads;
        const Py_ssize_t queries = (l->begins[row + 1] - l->begins[row]) * (l->heads / l->key_heads);
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
        turn_row(l, row);
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
        if (l->is_padded) {
            float *y = l->y + l->places[row] * l->hidden + own.first;
            memcpy(y, sums, sizeof(float) * (size_t)own.count);
        }
    }
}

/* Lay out the scratch memory for MAX_ROWS tokens, and run the layer on so many at a time: a token attends to none after
   it. Returns -1 if out of memory. */
static int
run_all(Layer *l, const Tokens *tokens)
{
    const Py_ssize_t all = l->batch * l->columns, most = tokens->count < MAX_ROWS ? tokens->count : MAX_ROWS;
    const size_t rows = (size_t)most, size = (size_t)l->head_size;
    const size_t queries = rows * (size_t)l->heads * size, keys = rows * (size_t)l->key_heads * size;
    const size_t hidden = rows * (size_t)l->hidden, inner = rows * (size_t)l->inner;
    l->threads = layer_threads(l->threads);
    l->stride = (l->used + 15) / 16 * 16;
    l->is_padded = all > tokens->count;
    const size_t scores = (size_t)(l->threads * MAX_QUERIES * l->stride), padded = l->is_padded ? hidden : 0;
    float *memory = PyMem_RawMalloc(sizeof(float) * (hidden + 2 * queries + 2 * keys + 2 * inner + scores + padded));
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
    l->sums = l->scores + scores;
    if (l->is_padded) {
        memset(l->y, 0, sizeof(float) * (size_t)(all * l->hidden));
    }
    for (Py_ssize_t first = 0; first < tokens->count; first += MAX_ROWS) {
        l->rows = tokens->count - first < MAX_ROWS ? tokens->count - first : MAX_ROWS;
        l->places = tokens->places + first;
        for (Py_ssize_t row = 0; row <= l->batch; row++) {
            const Py_ssize_t begin = tokens->begins[row] - first;
            l->begins[row] = begin < 0 ? 0 : begin < l->rows ? begin : l->rows;
        }
        if (!l->is_padded) {
            l->sums = l->y + first * l->hidden;
        }
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
run_all(Layer *l, const Tokens *tokens)
{
    (void)l, (void)tokens;
    return 0;
}

#endif

/* Check that the cache and the mask fit the layer, and that slots are in the cache. */
static int
check_cache(Layer *l)
{
    if (l->keys == NULL || l->values == NULL || l->used < 1 || l->used >= l->capacity || l->capacity % 4 != 0) {
        return fail_layer("slots");
    }
    if (l->slots == NULL && (l->start < 0 || l->start > l->used - l->columns)) {
        return fail_layer("slots");
    }
    for (Py_ssize_t place = 0; l->slots != NULL && place < l->batch * l->columns; place++) {
        if (l->slots[place] < -1 || l->slots[place] >= l->used) {
            return fail_layer("slots");
        }
    }
    return l->mask == NULL && l->slots != NULL ? fail_layer("masks") : 0;
}

/* Number the tokens besides padding, and find the slots that each batch row attends to: no more than its own last one.
   Returns -1 with an error set if there are none. */
static int
number_tokens(Layer *l, Tokens *tokens)
{
    tokens->places = PyMem_Malloc(sizeof(Py_ssize_t) * (size_t)(l->batch * l->columns));
    if (tokens->places == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t place = 0; place < l->batch * l->columns; place++) {
        if (place % l->columns == 0) {
            tokens->begins[place / l->columns] = tokens->count;
            l->ends[place / l->columns] = l->slots == NULL ? l->used : 1;
        }
        if (l->slots != NULL && l->slots[place] >= l->ends[place / l->columns]) {
            l->ends[place / l->columns] = (Py_ssize_t)l->slots[place] + 1;
        }
        if (l->slots == NULL || l->slots[place] >= 0) {
            tokens->places[tokens->count++] = place;
        }
    }
    tokens->begins[l->batch] = tokens->count;
    return tokens->count > 0 ? 0 : fail_layer("rows");
}

const char layer_doc[] =
    "layer(y, x, batch, columns, parts, scaling, cache, mask, threads)\n\n"
    "Writes the output of a decoder layer of Llama's kind, [batch, columns, hidden] of float32, to the address y; x is "
    "the address of its input. Tokens whose slot is -1 are padding: their outputs are zeros. parts: (products, norms, "
    "sizes, rotary); products: (weight, bias) of queries, keys, values, output, gate, up and down; norms: weights of the two RMSNorms, and those of queries and keys or None; "
    "sizes: (heads, key heads, head size, epsilon); rotary: (address of cosines, of sines, turned numbers, whether "
    "each row has its own). cache: (address of keys, of values, capacity, start, used, slots or None); mask: (address, "
    "whether each row has its own) or None.";

PyObject *
run_layer(PyObject *Py_UNUSED(module), PyObject *args)
{
    Layer l = {0};
    LayerArrays arrays = {0};
    Tokens tokens = {0};
    Py_buffer slots = {0};
    PyObject *parts, *slot_array, *mask, *result = NULL;
    unsigned long long y, x, keys, values, mask_at = 0;
    int is_masked_by_row = 0, is_good;
    if (!PyArg_ParseTuple(args, "KKnnO!f(KKnnnO)Oi", &y, &x, &l.batch, &l.columns, &PyTuple_Type, &parts, &l.scaling,
                          &keys, &values, &l.capacity, &l.start, &l.used, &slot_array, &mask, &l.threads)) {
        return NULL;
    }
    if (mask != Py_None && !PyArg_ParseTuple(mask, "Kp", &mask_at, &is_masked_by_row)) {
        return NULL;
    }
    l.y = (float *)(uintptr_t)y, l.x = (const float *)(uintptr_t)x;
    l.keys = (float *)(uintptr_t)keys, l.values = (float *)(uintptr_t)values;
    l.mask = (const float *)(uintptr_t)mask_at;
    l.mask_step = is_masked_by_row ? l.columns * l.used : 0;
    is_good = take_layer(&l, &arrays, parts) == 0;
    if (is_good && slot_array != Py_None) {
        is_good = take(&slots, "slots", slot_array, 2, 0, "l") == 0 &&
                  (slots.shape[0] == l.batch && slots.shape[1] == l.columns ? 1 : fail_layer("slots") == 0);
        l.slots = slots.buf;
    }
    if (is_good && number_tokens(&l, &tokens) == 0 && check_cache(&l) == 0) {
        int failed;
        Py_BEGIN_ALLOW_THREADS
        failed = run_all(&l, &tokens);
        Py_END_ALLOW_THREADS
        result = failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
    }
    PyMem_Free(tokens.places);
    PyBuffer_Release(&slots);
    release_layer(&arrays);
    return result;
}

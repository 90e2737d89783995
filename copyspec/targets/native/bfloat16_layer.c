/* The functions `half_layer`, a decoder layer of Llama's kind in bfloat16 up to its attention or from it on, and
   `bfloat16_layer`, the whole layer. */

#include "layer.h"

#include <string.h>

#if HAS_KERNELS

/* Where a computed token is among batch * columns. */
static Py_ssize_t
place_of(const Bfloat16Layer *h, Py_ssize_t row)
{
    return h->attention == NULL ? row : (Py_ssize_t)h->attention->places[row];
}

/* Normalise a thread's share of the tokens of x, [batch, columns, hidden], as inputs of products. */
static void
normalise_rows(const Bfloat16Layer *h, const uint16_t *x, const uint16_t *weight, Share share)
{
    const Layer *l = &h->layer;
    for (Py_ssize_t row = first_of(share, l->rows); row < last_of(share, l->rows); row++) {
        uint16_t *normal = h->made + row * l->hidden;
        bfloat16_layer_kernel()->normalise(normal, x + place_of(h, row) * l->hidden, weight, l->epsilon, l->hidden);
        bfloat16_layer_kernel()->arrange(h->given + row * l->hidden, normal, 0, l->hidden, l->hidden);
    }
}

/* Normalise and turn a head of the queries or keys of the token at `place`. */
static void
turn_head(const Layer *l, uint16_t *head, Py_ssize_t place, const uint16_t *norm)
{
    if (norm != NULL) {
        bfloat16_layer_kernel()->normalise(head, head, norm, l->epsilon, l->head_size);
    }
    const Py_ssize_t at = place / l->columns * l->turned_step + place % l->columns * l->turned;
    bfloat16_layer_kernel()->turn(head, (const uint16_t *)l->cosines + at, (const uint16_t *)l->sines + at,
                               l->turned);
}

/* Up to the queries, keys and values. */
static void
run_first(const Bfloat16Layer *h, Share share)
{
    const Layer *l = &h->layer;
    normalise_rows(h, l->x, l->norms[BEFORE_ATTENTION], share);
    wait_in(share);
    multiply_share(l->products + QUERY, 3, share);
    wait_in(share);
    uint16_t *queries = (uint16_t *)l->products[QUERY].y, *keys = (uint16_t *)l->products[KEY].y;
    for (Py_ssize_t row = first_of(share, l->rows); row < last_of(share, l->rows); row++) {
        for (Py_ssize_t head = 0; head < l->heads; head++) {
            turn_head(l, queries + (row * l->heads + head) * l->head_size, place_of(h, row), l->norms[OF_QUERIES]);
        }
        for (Py_ssize_t head = 0; head < l->key_heads; head++) {
            turn_head(l, keys + (row * l->key_heads + head) * l->head_size, place_of(h, row), l->norms[OF_KEYS]);
        }
    }
}

/* y = x + what was made of the tokens, in the outputs that a thread has multiplied. */
static void
add_share(const Bfloat16Layer *h, const uint16_t *x, Share share)
{
    const Layer *l = &h->layer;
    const Py_ssize_t panels = l->hidden / PANEL, first = first_of(share, panels) * PANEL;
    for (Py_ssize_t row = 0; row < l->rows; row++) {
        const Py_ssize_t at = place_of(h, row) * l->hidden + first, count = last_of(share, panels) * PANEL - first;
        bfloat16_layer_kernel()->add((uint16_t *)l->y + at, x + at, h->made + row * l->hidden + first, count);
    }
}

/* From the attention's output on. */
static void
run_second(const Bfloat16Layer *h, Share share)
{
    const Layer *l = &h->layer;
    const Py_ssize_t queries = l->heads * l->head_size;
    for (Py_ssize_t row = first_of(share, l->rows); row < last_of(share, l->rows); row++) {
        bfloat16_layer_kernel()->arrange(h->given + row * queries, h->attended + row * queries, 0, queries, queries);
    }
    wait_in(share);
    multiply_share(l->products + OUTPUT, 1, share);
    add_share(h, l->x, share);
    wait_in(share);
    normalise_rows(h, l->y, l->norms[BEFORE_MLP], share);
    wait_in(share);
    multiply_share(l->products + GATE, 1, share);
    multiply_share(l->products + UP, 1, share);
    const Py_ssize_t panels = l->inner / PANEL, first = first_of(share, panels) * PANEL;
    const Py_ssize_t count = last_of(share, panels) * PANEL - first;
    for (Py_ssize_t row = 0; row < l->rows; row++) {
        const Py_ssize_t at = row * l->inner + first;
        bfloat16_layer_kernel()->activate(h->gate + at, h->up + at, h->silu, count);
        bfloat16_layer_kernel()->arrange(h->wide + row * l->inner, h->gate + row * l->inner, first, first + count,
                                         l->inner);
    }
    wait_in(share);
    multiply_share(l->products + DOWN, 1, share);
    add_share(h, l->y, share);
}

/* Write the keys and values that a thread has placed to the cache. */
static void
cache_rows(const Bfloat16Layer *h, Share share)
{
    const Layer *l = &h->layer;
    const Attention *a = h->attention;
    const uint16_t *keys = (uint16_t *)l->products[KEY].y, *values = (uint16_t *)l->products[VALUE].y;
    const size_t size = sizeof(uint16_t) * (size_t)l->head_size;
    for (Py_ssize_t row = first_of(share, l->rows); row < last_of(share, l->rows); row++) {
        const Py_ssize_t slot = a->paths[row * a->width + a->seen[row] - a->starts[row] - 1];
        for (Py_ssize_t head = 0; head < l->key_heads; head++) {
            const Py_ssize_t from = (row * l->key_heads + head) * l->head_size;
            const Py_ssize_t to = ((a->of_batch[row] * l->key_heads + head) * a->capacity + slot) * l->head_size;
            memcpy(a->keys + to, keys + from, size);
            memcpy(a->values + to, values + from, size);
        }
    }
}

static void
run_share(void *given)
{
    const Bfloat16Layer *h = given;
    const Layer *l = &h->layer;
    const Share share = own_share(l->threads);
    if (h->attention == NULL) {
        (h->attended == NULL ? run_first : run_second)(h, share);
        return;
    }
    const Heads heads = {l->rows, l->heads, l->key_heads, l->head_size};
    run_first(h, share);
    cache_rows(h, share);
    wait_in(share);
    share_attention(h->attention, &heads, (uint16_t *)l->products[QUERY].y, h->outputs, h->space, share);
    wait_in(share);
    run_second(h, share);
}

/* Lay out the scratch memory and run the layer or the half. Returns -1 if out of memory. */
static int
run_bfloat16(Bfloat16Layer *h)
{
    Layer *l = &h->layer;
    const size_t rows = (size_t)l->rows, hidden = (size_t)l->hidden, inner = (size_t)l->inner;
    const size_t queries = (size_t)(l->heads * l->head_size);
    const size_t given = rows * (hidden > queries ? hidden : queries);
    const size_t heads = rows * (size_t)((l->heads + 2 * l->key_heads) * l->head_size);
    l->threads = layer_threads(l->threads);
    const int is_whole = h->attention != NULL;
    const size_t space = is_whole ? (size_t)(l->threads * ATTENTION_SPACE(l->head_size)) : 0;
    const size_t attended = is_whole ? rows * queries + heads : 0;
    char *memory = PyMem_RawMalloc(sizeof(float) * (given + rows * inner + space) +
                                   sizeof(uint16_t) * (2 * rows * inner + rows * hidden + attended));
    if (memory == NULL) {
        return -1;
    }
    h->given = (float *)memory;
    h->wide = h->given + given;
    h->space = h->wide + rows * inner;
    h->gate = (uint16_t *)(h->space + space);
    h->up = h->gate + rows * inner;
    h->made = h->up + rows * inner;
    h->outputs = h->made + rows * hidden;
    h->attended = is_whole ? h->outputs : h->attended;
    uint16_t *y = is_whole ? h->outputs + rows * queries : l->y;
    uint16_t *keys = y + rows * queries, *values = keys + rows * (size_t)(l->key_heads * l->head_size);
    uint16_t *const outputs[PRODUCTS] = {y, keys, values, h->made, h->gate, h->up, h->made};
    for (int i = 0; i < PRODUCTS; i++) {
        l->products[i].rows = l->rows;
        l->products[i].scratch = i == DOWN ? h->wide : h->given;
        l->products[i].y = (char *)outputs[i];
    }
    run_layer_threads(run_share, h, l->threads);
    PyMem_RawFree(memory);
    return 0;
}

#else

static int
run_bfloat16(Bfloat16Layer *h)
{
    (void)h;
    return 0;
}

#endif

static int
are_packed(const Layer *l)
{
    for (int i = 0; i < PRODUCTS; i++) {
        if (!l->products[i].is_packed) {
            return 0;
        }
    }
    return 1;
}

const char half_layer_doc[] =
    "half_layer(y, x, attended, batch, columns, parts, apart, silu, threads)\n\n"
    "A decoder layer of Llama's kind in bfloat16, with packed weights. With attended = 0 it writes queries, keys and "
    "values, [batch, columns, heads, head size] one after the other, to the address y; x is the address of the layer's "
    "input, [batch, columns, hidden]. Else attended is the address of the attention's output, and the layer's is "
    "written to y. parts: as for `layer`, of bfloat16's bits; apart: as for `linear`; silu: of all numbers, [65536].";

/* Parse what both functions take, and run the layer or a half of it. */
static PyObject *
run(Bfloat16Layer *h, PyObject *parts, PyObject *silu_array, Py_ssize_t apart, PyObject *cache)
{
    Layer *l = &h->layer;
    LayerArrays arrays = {0};
    Attention attention = {0};
    AttentionArrays of_attention = {0};
    Py_buffer silu = {0};
    PyObject *result = NULL;
    int is_good;
    if (kernel_for(BFLOAT16) == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this processor cannot: instructions() is empty");
        return NULL;
    }
    is_good = take_layer(l, &arrays, parts, (Product){.kind = BFLOAT16, .apart = apart}) == 0 &&
              (are_packed(l) ? 1 : fail_layer("weights") == 0);
    if (is_good && cache != NULL) {
        is_good = take_attention(&attention, &of_attention, cache, l->batch, l->columns, l->key_heads) == 0;
        h->attention = &attention;
    }
    l->rows = cache != NULL ? attention.rows : l->batch * l->columns;
    is_good = is_good && (l->rows <= MAX_ROWS ? 1 : fail_layer("rows") == 0);
    if (is_good) {
        is_good = take(&silu, "silu", silu_array, 1, 0, "H") == 0 &&
                  (silu.shape[0] == 65536 ? 1 : fail_layer("values of silu") == 0);
        h->silu = silu.buf;
    }
    if (is_good) {
        int failed;
        Py_BEGIN_ALLOW_THREADS
        failed = run_bfloat16(h);
        Py_END_ALLOW_THREADS
        result = failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
    }
    release_attention(&of_attention);
    PyBuffer_Release(&silu);
    release_layer(&arrays);
    return result;
}

PyObject *
run_half_layer(PyObject *Py_UNUSED(module), PyObject *args)
{
    Bfloat16Layer h = {0};
    PyObject *parts, *silu;
    unsigned long long y, x, attended;
    Py_ssize_t apart;
    if (!PyArg_ParseTuple(args, "KKKnnO!nOi", &y, &x, &attended, &h.layer.batch, &h.layer.columns, &PyTuple_Type,
                          &parts, &apart, &silu, &h.layer.threads)) {
        return NULL;
    }
    h.layer.y = (void *)(uintptr_t)y, h.layer.x = (const void *)(uintptr_t)x;
    h.attended = (const uint16_t *)(uintptr_t)attended;
    return run(&h, parts, silu, apart, NULL);
}

const char bfloat16_layer_doc[] =
    "bfloat16_layer(y, x, batch, columns, parts, apart, silu, cache, threads)\n\n"
    "Writes the output of a decoder layer of Llama's kind in bfloat16, with packed weights, [batch, columns, hidden], to "
    "the address y; x is the address of its input. parts, apart, silu: as for `half_layer`. cache: (address of keys, of "
    "values, capacity, scaling of scores, places, starts, paths, registers), with three arrays of the tokens that are "
    "computed: their places among batch * columns, rising; how many first slots of their row they attend to; and the "
    "slots after those, [tokens, n], padded with -1. The last one is the token's own, to which its keys and "
    "values are written. What y has at other places stays. registers: those that take turns in sums of exponentials, 1 "
    "or 2.";

PyObject *
run_bfloat16_layer(PyObject *Py_UNUSED(module), PyObject *args)
{
    Bfloat16Layer h = {0};
    PyObject *parts, *silu, *cache;
    unsigned long long y, x;
    Py_ssize_t apart;
    if (!PyArg_ParseTuple(args, "KKnnO!nOO!i", &y, &x, &h.layer.batch, &h.layer.columns, &PyTuple_Type, &parts, &apart,
                          &silu, &PyTuple_Type, &cache, &h.layer.threads) ||
        check_attention() < 0) {
        return NULL;
    }
    h.layer.y = (void *)(uintptr_t)y, h.layer.x = (const void *)(uintptr_t)x;
    return run(&h, parts, silu, apart, cache);
}

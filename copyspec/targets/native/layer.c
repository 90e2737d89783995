/* The function `layer`: a decoder layer of Llama's kind in one call.

   Between its seven products such a layer runs some forty operations on a few tokens, each of which costs more to start
   than to compute. Here its threads go through it together and wait for each other where a part needs all of the one
   before. */

#include "layer.h"

#include <string.h>

#if HAS_KERNELS

static const LayerKernel *
layer_kernel(void)
{
    return kernel_for(FLOAT32) == &AVX512_KERNEL ? &AVX512_LAYER : &AVX2_LAYER;
}

Py_ssize_t
first_of(Share share, Py_ssize_t all)
{
    return all * share.number / share.count;
}

Py_ssize_t
last_of(Share share, Py_ssize_t all)
{
    return all * (share.number + 1) / share.count;
}

void
wait_in(Share share)
{
    if (share.count > 1) {
        wait_for_threads();
    }
}

/* Multiply a thread's share of the outputs of `count` products as if they followed each other. */
void
multiply_share(const Product *products, int count, Share share)
{
    Py_ssize_t all = 0, before = 0;
    for (int i = 0; i < count; i++) {
        all += products[i].out / PANEL;
    }
    const Py_ssize_t first = first_of(share, all), last = last_of(share, all);
    for (int i = 0; i < count; i++) {
        const Py_ssize_t panels = products[i].out / PANEL;
        Py_ssize_t from = first > before ? first - before : 0, to = last - before < panels ? last - before : panels;
        if (from < to) {
            kernel_for(products[i].kind)->multiply(&products[i], from * PANEL, to * PANEL);
        }
        before += panels;
    }
}

static void
normalise_rows(const Layer *l, const float *x, const float *weight, Share share)
{
    for (Py_ssize_t row = first_of(share, l->rows); row < last_of(share, l->rows); row++) {
        layer_kernel()->normalise(l->normed + row * l->hidden, x + row * l->hidden, weight, l->epsilon, l->hidden);
    }
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

/* Normalise and turn a head of a row's queries or keys. */
static void
place(const Layer *l, float *head, Py_ssize_t row, const float *norm)
{
    if (norm != NULL) {
        layer_kernel()->normalise(head, head, norm, l->epsilon, l->head_size);
    }
    const Py_ssize_t at = row / l->columns * l->turned_step + row % l->columns * l->turned;
    turn(head, l->cosines + at, l->sines + at, l->turned);
}

/* Place the queries and keys of a row, and write its keys and values to the cache. */
static void
place_row(const Layer *l, Py_ssize_t row)
{
    const Py_ssize_t size = l->head_size;
    for (Py_ssize_t head = 0; head < l->heads; head++) {
        place(l, l->queries + (row * l->heads + head) * size, row, l->norms[OF_QUERIES]);
    }
    Py_ssize_t slot = l->slots != NULL ? (Py_ssize_t)l->slots[row] : l->start + row % l->columns;
    slot = slot < 0 ? l->capacity - 1 : slot;
    for (Py_ssize_t head = 0; head < l->key_heads; head++) {
        const Py_ssize_t from = (row * l->key_heads + head) * size;
        const Py_ssize_t to = ((row / l->columns * l->key_heads + head) * l->capacity + slot) * size;
        place(l, l->new_keys + from, row, l->norms[OF_KEYS]);
        memcpy(l->keys + to, l->new_keys + from, sizeof(float) * (size_t)size);
        memcpy(l->values + to, l->new_values + from, sizeof(float) * (size_t)size);
    }
}

/* A share of the attention: of the blocks of MOST_QUERIES queries of all rows and key heads. */
static void
attend_share(const Layer *l, Share share)
{
    const Py_ssize_t queries = l->columns * (l->heads / l->key_heads);
    const Py_ssize_t blocks = (queries + MOST_QUERIES - 1) / MOST_QUERIES, all = l->batch * l->key_heads * blocks;
    float *scores = l->scores + share.number * MOST_QUERIES * l->stride;
    for (Py_ssize_t at = first_of(share, all); at < last_of(share, all); at++) {
        const Py_ssize_t first = at % blocks * MOST_QUERIES, rest = queries - first;
        const int count = (int)(rest < MOST_QUERIES ? rest : MOST_QUERIES);
        layer_kernel()->attend(l, at / blocks / l->key_heads, at / blocks % l->key_heads, first, count, scores);
    }
}

/* y = x + y in the outputs that a thread has multiplied. */
static void
add_share(const Layer *l, float *y, const float *x, Share share)
{
    const Py_ssize_t panels = l->hidden / PANEL;
    const Py_ssize_t first = first_of(share, panels) * PANEL, last = last_of(share, panels) * PANEL;
    for (Py_ssize_t row = 0; row < l->rows; row++) {
        for (Py_ssize_t at = row * l->hidden + first; at < row * l->hidden + last; at++) {
            y[at] = x[at] + y[at];
        }
    }
}

static void
run_share(void *given)
{
    const Layer *l = given;
    const Share share = l->threads > 1 ? (Share){thread_number(), thread_count()} : (Share){0, 1};
    normalise_rows(l, l->x, l->norms[BEFORE_ATTENTION], share);
    wait_in(share);
    multiply_share(l->products + QUERY, 3, share);
    wait_in(share);
    for (Py_ssize_t row = first_of(share, l->rows); row < last_of(share, l->rows); row++) {
        place_row(l, row);
    }
    wait_in(share);
    attend_share(l, share);
    wait_in(share);
    multiply_share(l->products + OUTPUT, 1, share);
    add_share(l, l->y, l->x, share);
    wait_in(share);
    normalise_rows(l, l->y, l->norms[BEFORE_MLP], share);
    wait_in(share);
    multiply_share(l->products + GATE, 1, share);
    multiply_share(l->products + UP, 1, share);
    const Py_ssize_t panels = l->inner / PANEL, first = first_of(share, panels) * PANEL;
    const Py_ssize_t count = last_of(share, panels) * PANEL - first;
    for (Py_ssize_t row = 0; count > 0 && row < l->rows; row++) {
        layer_kernel()->activate(l->gate + row * l->inner + first, l->up + row * l->inner + first, count);
    }
    wait_in(share);
    multiply_share(l->products + DOWN, 1, share); /* to `normed`, which no thread reads any more */
    add_share(l, l->y, l->normed, share);
}

/* Lay out the scratch memory and run the layer. Returns -1 if out of memory. */
static int
run_all(Layer *l)
{
    const size_t rows = (size_t)l->rows, size = (size_t)l->head_size;
    const size_t queries = rows * (size_t)l->heads * size, keys = rows * (size_t)l->key_heads * size;
    const size_t hidden = rows * (size_t)l->hidden, inner = rows * (size_t)l->inner;
    l->threads = run_parallel != NULL ? l->threads : 1;
    l->stride = (l->used + 15) / 16 * 16;
    const size_t scores = (size_t)(l->threads * MOST_QUERIES * l->stride);
    float *memory = PyMem_RawMalloc(sizeof(float) * (hidden + 2 * queries + 2 * keys + 2 * inner + scores));
    if (memory == NULL) {
        return -1;
    }
    Product *p = l->products;
    l->normed = memory;
    l->queries = l->normed + hidden;
    l->attended = l->queries + queries;
    l->new_keys = l->attended + queries;
    l->new_values = l->new_keys + keys;
    l->gate = l->new_values + keys;
    l->up = l->gate + inner;
    l->scores = l->up + inner;
    const float *const inputs[PRODUCTS] = {l->normed, l->normed, l->normed, l->attended, l->normed, l->normed, l->gate};
    float *const outputs[PRODUCTS] = {l->queries, l->new_keys, l->new_values, l->y, l->gate, l->up, l->normed};
    for (int i = 0; i < PRODUCTS; i++) {
        p[i].x = (const char *)inputs[i], p[i].y = (char *)outputs[i];
    }
    if (l->threads > 1) {
        run_parallel(run_share, l, (unsigned)l->threads, 0);
    }
    else {
        run_share(l);
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

static int
fail(const char *what)
{
    PyErr_Format(PyExc_ValueError, "the layer's %s do not fit each other", what);
    return -1;
}

/* Check that all sizes fit, and that slots are in the cache. */
static int
check_layer(Layer *l)
{
    Product *p = l->products;
    const Py_ssize_t queries = l->heads * l->head_size, keys = l->key_heads * l->head_size;
    l->hidden = p[QUERY].in, l->inner = p[GATE].out;
    if (l->batch < 1 || l->columns < 1 || l->batch > MOST_ROWS || l->columns > MOST_ROWS ||
        l->batch * l->columns > MOST_ROWS) {
        return fail("rows");
    }
    l->rows = l->batch * l->columns;
    if (l->key_heads < 1 || l->heads < l->key_heads || l->heads % l->key_heads != 0 || l->head_size < 16 ||
        l->head_size % 16 != 0 || l->head_size > 1024 || l->heads > 4096) {
        return fail("heads");
    }
    const Py_ssize_t shapes[PRODUCTS][2] = {{queries, l->hidden}, {keys, l->hidden},     {keys, l->hidden},
                                            {l->hidden, queries}, {l->inner, l->hidden}, {l->inner, l->hidden},
                                            {l->hidden, l->inner}};
    for (int i = 0; i < PRODUCTS; i++) {
        if (p[i].out != shapes[i][0] || p[i].in != shapes[i][1]) {
            return fail("weights");
        }
        p[i].rows = l->rows, p[i].threads = l->threads, p[i].apart = 64;
        p[i].x = (const char *)l->x, p[i].y = (char *)l->y;
        if (check_product(&p[i]) < 0) {
            return -1;
        }
    }
    if (l->turned < 0 || l->turned % 2 != 0 || l->turned > l->head_size || l->cosines == NULL || l->sines == NULL) {
        return fail("positions");
    }
    l->turned_step = l->turned_step != 0 ? l->columns * l->turned : 0;
    l->mask_step = l->mask_step != 0 ? l->columns * l->used : 0;
    if (l->keys == NULL || l->values == NULL || l->used < 1 || l->used >= l->capacity || l->capacity % 4 != 0) {
        return fail("slots");
    }
    if (l->slots == NULL && (l->start < 0 || l->start > l->used - l->columns)) {
        return fail("slots");
    }
    for (Py_ssize_t row = 0; l->slots != NULL && row < l->rows; row++) {
        if (l->slots[row] < -1 || l->slots[row] >= l->used) {
            return fail("slots");
        }
    }
    if (l->mask == NULL && l->slots != NULL) {
        return fail("masks");
    }
    return 0;
}

const char layer_doc[] =
    "layer(y, x, batch, columns, products, norms, sizes, rotary, cache, mask, threads)\n\n"
    "Writes the output of a decoder layer of Llama's kind, [batch, columns, hidden] of float32, to the address y; x is "
    "the address of its input. products: (weight, bias) of queries, keys, values, output, gate, up and down; norms: "
    "weights of the two RMSNorms, and those of queries and keys or None; sizes: (heads, key heads, head size, epsilon, "
    "scaling); rotary: (address of cosines, of sines, turned numbers, whether each row has its own); cache: (address "
    "of keys, of values, capacity, start, used, slots or None); mask: (address, whether each row has its own) or None.";

PyObject *
run_layer(PyObject *Py_UNUSED(module), PyObject *args)
{
    Layer l = {0};
    Py_buffer weights[PRODUCTS] = {{0}}, biases[PRODUCTS] = {{0}}, norms[NORMS] = {{0}}, slots = {0};
    PyObject *pairs[PRODUCTS], *norm_arrays[NORMS], *slot_array, *mask, *result = NULL;
    unsigned long long y, x, cosines, sines, keys, values, mask_at = 0;
    int is_turned_by_row, is_masked_by_row = 0, is_good = 1;
    if (!PyArg_ParseTuple(args, "KKnn(OOOOOOO)(OOOO)(nnnff)(KKnp)(KKnnnO)Oi", &y, &x, &l.batch, &l.columns, &pairs[0],
                          &pairs[1], &pairs[2], &pairs[3], &pairs[4], &pairs[5], &pairs[6], &norm_arrays[0],
                          &norm_arrays[1], &norm_arrays[2], &norm_arrays[3], &l.heads, &l.key_heads, &l.head_size,
                          &l.epsilon, &l.scaling, &cosines, &sines, &l.turned, &is_turned_by_row, &keys, &values,
                          &l.capacity, &l.start, &l.used, &slot_array, &mask, &l.threads)) {
        return NULL;
    }
    if (mask != Py_None && !PyArg_ParseTuple(mask, "Kp", &mask_at, &is_masked_by_row)) {
        return NULL;
    }
    l.y = (float *)(uintptr_t)y, l.x = (const float *)(uintptr_t)x;
    l.cosines = (const float *)(uintptr_t)cosines, l.sines = (const float *)(uintptr_t)sines;
    l.keys = (float *)(uintptr_t)keys, l.values = (float *)(uintptr_t)values;
    l.mask = (const float *)(uintptr_t)mask_at;
    l.turned_step = is_turned_by_row, l.mask_step = is_masked_by_row;
    for (int i = 0; i < PRODUCTS && is_good; i++) {
        PyObject *weight, *bias;
        is_good = PyArg_ParseTuple(pairs[i], "OO", &weight, &bias) &&
                  take_weight(&l.products[i], &weights[i], &biases[i], weight, bias) == 0;
    }
    if (is_good && slot_array != Py_None) {
        is_good = take(&slots, "slots", slot_array, 2, 0, "l") == 0 &&
                  (slots.shape[0] == l.batch && slots.shape[1] == l.columns ? 1 : fail("slots") == 0);
        l.slots = slots.buf;
    }
    is_good = is_good && check_layer(&l) == 0;
    for (int i = 0; i < NORMS && is_good; i++) {
        if (norm_arrays[i] != Py_None || i < OF_QUERIES) {
            Py_ssize_t size = i < OF_QUERIES ? l.hidden : l.head_size;
            is_good = take(&norms[i], "norm", norm_arrays[i], 1, 0, "f") == 0 &&
                      (norms[i].shape[0] == size ? 1 : fail("norms") == 0);
            l.norms[i] = norms[i].buf;
        }
    }
    if (is_good) {
        int failed;
        Py_BEGIN_ALLOW_THREADS
        failed = run_all(&l);
        Py_END_ALLOW_THREADS
        result = failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
    }
    for (int i = 0; i < PRODUCTS; i++) {
        PyBuffer_Release(&weights[i]);
        PyBuffer_Release(&biases[i]);
    }
    for (int i = 0; i < NORMS; i++) {
        PyBuffer_Release(&norms[i]);
    }
    PyBuffer_Release(&slots);
    return result;
}

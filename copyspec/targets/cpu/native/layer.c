/* The function `layer`: a Llama-style decoder layer in one call.

   Between its seven products such a layer runs some forty operations on a few tokens, each of which costs more to start
   than to compute. Here its threads go through it together and wait for each other where a part needs all of the one
   before. */

#include "layer.h"

#include <string.h>

#if HAS_KERNELS

/* Thread `number` of `count` takes the items first_of .. last_of - 1 of all. */
typedef struct {
    int number, count;
} Share;

static Share
own_share(int threads)
{
    return threads > 1 ? (Share){thread_number(), thread_count()} : (Share){0, 1};
}

static Py_ssize_t
first_of(Share share, Py_ssize_t all)
{
    return all * share.number / share.count;
}

static Py_ssize_t
last_of(Share share, Py_ssize_t all)
{
    return all * (share.number + 1) / share.count;
}

static void
barrier(Share share)
{
    if (share.count > 1) {
        wait_for_threads();
    }
}

/* Multiply a thread's share of the outputs of `count` products as if they followed each other. */
static void
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
            kernel()->multiply(&products[i], from * PANEL, to * PANEL);
        }
        before += panels;
    }
}

static const LayerKernel *
layer_kernel(void)
{
    return kernel() == &AVX512_KERNEL ? &AVX512_LAYER : &AVX2_LAYER;
}

/* The input of a token of the chunk. */
static const float *
input_of(const Layer *l, Py_ssize_t token)
{
    return l->x + (l->chunk_start + token) * l->hidden;
}

/* Rotary position embedding of one head: the first half of the rotated numbers is paired with the second. */
static void
rotate(float *head, const float *cosines, const float *sines, Py_ssize_t rotary_dim)
{
    const Py_ssize_t half = rotary_dim / 2;
    for (Py_ssize_t i = 0; i < half; i++) {
        float first = head[i], second = head[half + i];
        head[i] = first * cosines[i] - second * sines[i];
        head[half + i] = second * cosines[half + i] + first * sines[half + i];
    }
}

/* Normalise and rotate a head of the queries or keys of a token. */
static void
rotate_head(const Layer *l, float *head, Py_ssize_t token, const float *norm)
{
    if (norm != NULL) {
        layer_kernel()->normalise(head, head, norm, l->epsilon, l->head_size);
    }
    const Py_ssize_t at = (l->chunk_start + token) * l->rotary_dim;
    rotate(head, l->cosines + at, l->sines + at, l->rotary_dim);
}

/* Rotate the queries and keys of a token, and write its keys and values to the buffers of its row. */
static void
rotate_token(const Layer *l, Py_ssize_t token)
{
    const Py_ssize_t size = l->head_size;
    const Row *row = l->table;
    while (row + 1 < l->table + l->batch && row[1].first <= l->chunk_start + token) {
        row++;
    }
    float *keys = (float *)(uintptr_t)row->keys, *values = (float *)(uintptr_t)row->values;
    const Py_ssize_t slot = (Py_ssize_t)(row->start - row->first) + l->chunk_start + token;
    for (Py_ssize_t head = 0; head < l->heads; head++) {
        rotate_head(l, l->queries + (token * l->heads + head) * size, token, l->norms[OF_QUERIES]);
    }
    for (Py_ssize_t head = 0; head < l->key_heads; head++) {
        const Py_ssize_t from = (token * l->key_heads + head) * size, to = (head * row->capacity + slot) * size;
        rotate_head(l, l->new_keys + from, token, l->norms[OF_KEYS]);
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
run_share(void *layer)
{
    const Layer *l = layer;
    const Share share = own_share(l->threads);
    const Py_ssize_t first = first_of(share, l->chunk_tokens), last = last_of(share, l->chunk_tokens);
    const Outputs own = outputs_of(l, share);
    for (Py_ssize_t token = first; token < last; token++) {
        layer_kernel()->normalise(l->normed + token * l->hidden, input_of(l, token), l->norms[BEFORE_ATTENTION],
                                  l->epsilon, l->hidden);
    }
    barrier(share);
    multiply_share(l->products + QUERY, 3, share);
    barrier(share);
    for (Py_ssize_t token = first; token < last; token++) {
        rotate_token(l, token);
    }
    barrier(share);
    attend_share(l, share);
    barrier(share);
    multiply_share(l->products + OUTPUT, 1, share);
    for (Py_ssize_t token = 0; token < l->chunk_tokens; token++) {
        add(l->sums + token * l->hidden + own.first, input_of(l, token) + own.first, own.count);
    }
    barrier(share);
    for (Py_ssize_t token = first; token < last; token++) {
        layer_kernel()->normalise(l->normed + token * l->hidden, l->sums + token * l->hidden, l->norms[BEFORE_MLP],
                                  l->epsilon, l->hidden);
    }
    barrier(share);
    multiply_share(l->products + GATE, 1, share);
    multiply_share(l->products + UP, 1, share);
    const Py_ssize_t panels = l->intermediate / PANEL, from = first_of(share, panels) * PANEL;
    const Py_ssize_t count = last_of(share, panels) * PANEL - from;
    for (Py_ssize_t token = 0; count > 0 && token < l->chunk_tokens; token++) {
        layer_kernel()->activate(l->gate + token * l->intermediate + from, l->up + token * l->intermediate + from,
                                 count);
    }
    barrier(share);
    multiply_share(l->products + DOWN, 1, share); /* to `normed`, which no thread reads any more */
    for (Py_ssize_t token = 0; token < l->chunk_tokens; token++) {
        float *sums = l->sums + token * l->hidden + own.first;
        add(sums, l->normed + token * l->hidden + own.first, own.count);
    }
}

/* Lay out the scratch memory for MAX_ROWS tokens, and run the layer on that many at a time, which is possible as no
   token attends to later ones. Returns -1 if out of memory. */
static int
run_all(Layer *l)
{
    const Py_ssize_t most = l->tokens < MAX_ROWS ? l->tokens : MAX_ROWS;
    const size_t tokens = (size_t)most, size = (size_t)l->head_size;
    const size_t queries = tokens * (size_t)l->heads * size, keys = tokens * (size_t)l->key_heads * size;
    const size_t hidden = tokens * (size_t)l->hidden, intermediate = tokens * (size_t)l->intermediate;
    Py_ssize_t used = 0;
    for (const Row *row = l->table; row < l->table + l->batch; row++) {
        used = row->used > used ? (Py_ssize_t)row->used : used;
    }
    l->threads = run_parallel != NULL ? l->threads : 1;
    l->stride = (used + 15) / 16 * 16;
    const size_t scores = (size_t)(l->threads * MAX_QUERIES * l->stride);
    float *memory = PyMem_RawMalloc(sizeof(float) * (hidden + 2 * queries + 2 * keys + 2 * intermediate + scores));
    if (memory == NULL) {
        return -1;
    }
    l->normed = memory;
    l->queries = l->normed + hidden;
    l->attended = l->queries + queries;
    l->new_keys = l->attended + queries;
    l->new_values = l->new_keys + keys;
    l->gate = l->new_values + keys;
    l->up = l->gate + intermediate;
    l->scores = l->up + intermediate;
    for (l->chunk_start = 0; l->chunk_start < l->tokens; l->chunk_start += MAX_ROWS) {
        l->chunk_tokens = l->tokens - l->chunk_start < MAX_ROWS ? l->tokens - l->chunk_start : MAX_ROWS;
        l->sums = l->y + l->chunk_start * l->hidden;
        const float *const inputs[PRODUCTS] = {l->normed, l->normed, l->normed, l->attended, l->normed, l->normed,
                                               l->gate};
        float *const outputs[PRODUCTS] = {l->queries, l->new_keys, l->new_values, l->sums, l->gate, l->up, l->normed};
        for (int i = 0; i < PRODUCTS; i++) {
            l->products[i].rows = l->chunk_tokens;
            l->products[i].x = inputs[i], l->products[i].y = outputs[i];
        }
        if (l->threads > 1) {
            run_parallel(run_share, l, (unsigned)l->threads, 0);
        }
        else {
            run_share(l);
        }
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

/* Arrays that a call reads from, to be released. */
typedef struct {
    Py_buffer weights[PRODUCTS], biases[PRODUCTS], norms[NORMS];
} LayerArrays;

#define MAX_TOKENS 65536

static int
fail_layer(const char *what)
{
    PyErr_Format(PyExc_ValueError, "the layer's %s do not fit each other", what);
    return -1;
}

static int
check_heads(Py_ssize_t heads, Py_ssize_t key_heads, Py_ssize_t size)
{
    const int is_good = key_heads >= 1 && heads >= key_heads && heads % key_heads == 0 && heads <= 4096 && size >= 16 &&
                        size % 16 == 0 && size <= 1024;
    return is_good ? 0 : fail_layer("heads");
}

static int
check_sizes(Layer *l)
{
    Product *p = l->products;
    const Py_ssize_t queries = l->heads * l->head_size, keys = l->key_heads * l->head_size;
    const Py_ssize_t hidden = l->hidden, intermediate = l->intermediate;
    const Py_ssize_t shapes[PRODUCTS][2] = {{queries, hidden}, {keys, hidden},         {keys, hidden},
                                            {hidden, queries}, {intermediate, hidden}, {intermediate, hidden},
                                            {hidden, intermediate}};
    for (int i = 0; i < PRODUCTS; i++) {
        if (p[i].out != shapes[i][0] || p[i].in != shapes[i][1]) {
            return fail_layer("weights");
        }
        if (check_product(&p[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Parse (products, norms, sizes, rotary), as ../_linear.pyi documents them, and check that they fit the layer, of which tokens,
   x, y and threads are set. `chunk_tokens` and the rows of the products are left to the caller. Returns -1 with an
   error set; `arrays` are to be released in any case. */
static int
take_layer(Layer *l, LayerArrays *arrays, PyObject *parts)
{
    PyObject *pairs[PRODUCTS], *norms[NORMS];
    unsigned long long cosines, sines;
    if (!PyArg_ParseTuple(parts, "(OOOOOOO)(OOOO)(nnnf)(KKn)", &pairs[0], &pairs[1], &pairs[2], &pairs[3], &pairs[4],
                          &pairs[5], &pairs[6], &norms[0], &norms[1], &norms[2], &norms[3], &l->heads, &l->key_heads,
                          &l->head_size, &l->epsilon, &cosines, &sines, &l->rotary_dim)) {
        return -1;
    }
    if (l->tokens < 1 || l->tokens > MAX_TOKENS) {
        return fail_layer("rows");
    }
    if (check_heads(l->heads, l->key_heads, l->head_size) < 0) {
        return -1;
    }
    if (l->rotary_dim < 0 || l->rotary_dim % 2 != 0 || l->rotary_dim > l->head_size || cosines == 0 || sines == 0) {
        return fail_layer("positions");
    }
    l->cosines = (const float *)(uintptr_t)cosines, l->sines = (const float *)(uintptr_t)sines;
    for (int i = 0; i < PRODUCTS; i++) {
        PyObject *weight, *bias;
        l->products[i] = (Product){.rows = 1, .threads = l->threads, .x = l->x, .y = l->y};
        if (!PyArg_ParseTuple(pairs[i], "OO", &weight, &bias) ||
            take_weight(&l->products[i], &arrays->weights[i], &arrays->biases[i], weight, bias) < 0) {
            return -1;
        }
    }
    l->hidden = l->products[QUERY].in, l->intermediate = l->products[GATE].out;
    if (check_sizes(l) < 0) {
        return -1;
    }
    for (int i = 0; i < NORMS; i++) {
        if (norms[i] == Py_None && i >= OF_QUERIES) {
            continue;
        }
        if (take(&arrays->norms[i], "norm", norms[i], 1, 0, "f") < 0) {
            return -1;
        }
        if (arrays->norms[i].shape[0] != (i < OF_QUERIES ? l->hidden : l->head_size)) {
            return fail_layer("norms");
        }
        l->norms[i] = arrays->norms[i].buf;
    }
    return 0;
}

static void
release_layer(LayerArrays *arrays)
{
    for (int i = 0; i < PRODUCTS; i++) {
        PyBuffer_Release(&arrays->weights[i]);
        PyBuffer_Release(&arrays->biases[i]);
    }
    for (int i = 0; i < NORMS; i++) {
        PyBuffer_Release(&arrays->norms[i]);
    }
}

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

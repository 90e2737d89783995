/* What the functions of layers share: the check of their arguments, and work in shares of threads. */

#include "layer.h"

#define MAX_TOKENS 65536

int
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

int
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

void
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

#if HAS_KERNELS

int
layer_threads(int wanted)
{
    return run_parallel != NULL ? wanted : 1;
}

void
run_layer_threads(void (*run)(void *), void *argument, int threads)
{
    if (threads > 1) {
        run_parallel(run, argument, (unsigned)threads, 0);
    }
    else {
        run(argument);
    }
}

Share
own_share(int threads)
{
    return threads > 1 ? (Share){thread_number(), thread_count()} : (Share){0, 1};
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

/* The token of the pass behind the row's last one. */
static Py_ssize_t
end_of(const Layer *l, const Row *row)
{
    return row + 1 < l->table + l->batch ? (Py_ssize_t)row[1].first : l->tokens;
}

Py_ssize_t
first_in(const Layer *l, const Row *row)
{
    return row->first > l->chunk_start ? (Py_ssize_t)row->first : l->chunk_start;
}

Py_ssize_t
count_in(const Layer *l, const Row *row)
{
    const Py_ssize_t last = l->chunk_start + l->chunk_tokens, end = end_of(l, row);
    const Py_ssize_t count = (end < last ? end : last) - first_in(l, row);
    return count > 0 ? count : 0;
}

void
barrier(Share share)
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
            kernel()->multiply(&products[i], from * PANEL, to * PANEL);
        }
        before += panels;
    }
}

#endif

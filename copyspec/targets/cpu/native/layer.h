/* A Llama-style decoder layer in float32, and the kernels that compute its parts beside the products. */

#ifndef COPYSPEC_LAYER_H
#define COPYSPEC_LAYER_H

#include "linear.h"

enum { QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN, PRODUCTS };
enum { BEFORE_ATTENTION, BEFORE_MLP, OF_QUERIES, OF_KEYS, NORMS };

#define MAX_QUERIES 4 /* of one call of `attend` */

/* A row of a pass: its own buffers, and its tokens, which follow each other among those of the pass. */
typedef struct {
    int64_t first;          /* of its tokens */
    int64_t keys, values;   /* addresses of [key_heads, capacity, head_size] */
    int64_t capacity;
    int64_t start, used;    /* slots before the pass, and after it */
    int64_t mask;           /* address of [tokens of the row, used], added to scores; 0: causal */
} Row;

#define ROW_FIELDS 7

typedef struct {
    Product products[PRODUCTS];
    const float *norms[NORMS]; /* weights of the RMSNorms; NULL for queries and keys that have none */
    float epsilon, scaling;    /* scaling: of the scores */
    Py_ssize_t tokens, hidden, intermediate; /* tokens of the pass; intermediate: width of the MLP */
    Py_ssize_t chunk_start, chunk_tokens;    /* the tokens that are computed at a time: the first one, and how many */
    Py_ssize_t heads, key_heads, head_size;
    const float *x, *cosines, *sines; /* [tokens, hidden]; [tokens, rotary_dim] */
    float *y;
    Py_ssize_t rotary_dim; /* numbers of a head that are rotated */
    int threads;
    const Row *table; /* [batch] */
    Py_ssize_t batch;
    float *sums; /* [chunk_tokens, hidden], in y */
    float *normed, *queries, *new_keys, *new_values, *attended, *gate, *up, *scores; /* scratch memory */
    Py_ssize_t stride; /* scores of one query; each thread has MAX_QUERIES times as many */
} Layer;

typedef struct {
    /* y = x / sqrt(mean(x^2) + epsilon) * weight, of `size` numbers. */
    void (*normalise)(float *y, const float *x, const float *weight, float epsilon, Py_ssize_t size);
    /* Attention of `count` queries of one row and key head, the first one included; queries are numbered token by token,
       from the row's first token on that is computed now. */
    void (*attend)(const Layer *layer, const Row *row, Py_ssize_t key_head, Py_ssize_t first, int count, float *scores);
    /* gate = silu(gate) * up */
    void (*activate)(float *gate, const float *up, Py_ssize_t size);
} LayerKernel;

#if HAS_KERNELS
extern const LayerKernel AVX512_LAYER, AVX2_LAYER;
#endif

/* The token of the pass behind the row's last one. */
static inline Py_ssize_t
end_of(const Layer *l, const Row *row)
{
    return row + 1 < l->table + l->batch ? (Py_ssize_t)row[1].first : l->tokens;
}

/* The first token of a row that is computed now, and how many of its tokens are. */
static inline Py_ssize_t
first_in(const Layer *l, const Row *row)
{
    return row->first > l->chunk_start ? (Py_ssize_t)row->first : l->chunk_start;
}

static inline Py_ssize_t
count_in(const Layer *l, const Row *row)
{
    const Py_ssize_t last = l->chunk_start + l->chunk_tokens, end = end_of(l, row);
    const Py_ssize_t count = (end < last ? end : last) - first_in(l, row);
    return count > 0 ? count : 0;
}

/* The function of the module that computes layers. */
PyObject *run_layer(PyObject *module, PyObject *args);

#endif

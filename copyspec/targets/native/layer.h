/* A decoder layer of Llama's kind in float32, and the kernels that compute its parts beside the products. */

#ifndef COPYSPEC_LAYER_H
#define COPYSPEC_LAYER_H

#include "linear.h"

enum { QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN, PRODUCTS };
enum { BEFORE_ATTENTION, BEFORE_MLP, OF_QUERIES, OF_KEYS, NORMS };

#define MOST_QUERIES 4 /* of one call of `attend` */

typedef struct {
    Product products[PRODUCTS];
    const float *norms[NORMS]; /* weights of the RMSNorms; NULL for queries and keys that have none */
    float epsilon, scaling;    /* `scaling`: of the scores */
    Py_ssize_t batch, columns, rows, hidden, inner; /* rows: batch * columns; inner: width of the MLP */
    Py_ssize_t heads, key_heads, head_size;
    const float *x;            /* [rows, hidden] */
    float *y;
    const float *cosines, *sines;   /* [batch or 1, columns, turned] */
    Py_ssize_t turned, turned_step; /* numbers of a head that are rotated; from one batch row's to the next's */
    float *keys, *values;           /* of the cache, [batch, key_heads, capacity, head_size] */
    Py_ssize_t capacity, start, used; /* first slot written, where `slots` is NULL; slots attended to */
    const int64_t *slots;             /* [batch, columns]; -1: the last one, which is scratch */
    const float *mask;                /* [batch or 1, columns, used], added to scores; NULL: causal */
    Py_ssize_t mask_step;             /* from one batch row's to the next's */
    float *normed, *queries, *new_keys, *new_values, *attended, *gate, *up, *scores; /* scratch memory */
    Py_ssize_t stride; /* scores of one query; each thread has MOST_QUERIES times as many */
    int threads;
} Layer;

typedef struct {
    /* y = x / sqrt(mean(x^2) + epsilon) * weight, of `size` numbers. */
    void (*normalise)(float *y, const float *x, const float *weight, float epsilon, Py_ssize_t size);
    /* Attention of `count` queries of one key head, the first one included; queries are numbered column by column. */
    void (*attend)(const Layer *layer, Py_ssize_t row, Py_ssize_t key_head, Py_ssize_t first, int count, float *scores);
    /* gate = silu(gate) * up */
    void (*activate)(float *gate, const float *up, Py_ssize_t size);
} LayerKernel;

#if HAS_KERNELS
extern const LayerKernel AVX512_LAYER, AVX2_LAYER;
#endif

/* The function `layer` of the module. */
PyObject *run_layer(PyObject *module, PyObject *args);
extern const char layer_doc[];

#endif

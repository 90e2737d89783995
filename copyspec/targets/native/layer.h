/* A decoder layer of Llama's kind in float32, and the kernels that compute its parts beside the products. */

#ifndef COPYSPEC_LAYER_H
#define COPYSPEC_LAYER_H

#include "linear.h"

enum { QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN, PRODUCTS };
enum { BEFORE_ATTENTION, BEFORE_MLP, OF_QUERIES, OF_KEYS, NORMS };

#define MAX_QUERIES 4 /* of one call of `attend` */

/* Padding is left out: the computed tokens are numbered in order, and those of a batch row follow each other. */
typedef struct {
    Product products[PRODUCTS];
    const float *norms[NORMS]; /* weights of the RMSNorms; NULL for queries and keys that have none */
    float epsilon, scaling;    /* scaling: of the scores */
    Py_ssize_t batch, columns, hidden, inner; /* inner: width of the MLP */
    Py_ssize_t rows; /* tokens that are computed */
    Py_ssize_t heads, key_heads, head_size;
    const float *x, *cosines, *sines; /* [batch, columns, hidden]; [batch or 1, columns, turned] */
    float *y;
    Py_ssize_t turned, turned_step; /* numbers of a head that are rotated; from one batch row's to the next's */
    int threads;
    const Py_ssize_t *places;        /* of the tokens among batch * columns */
    Py_ssize_t begins[MAX_ROWS + 1]; /* of the batch rows among the tokens */
    Py_ssize_t ends[MAX_ROWS];       /* of the slots that the batch rows attend to */
    int is_padded;                   /* whether there is padding */
    float *keys, *values;             /* of the cache, [batch, key_heads, capacity, head_size] */
    Py_ssize_t capacity, start, used; /* first slot written, where `slots` is NULL; slots attended to */
    const int64_t *slots;             /* [batch, columns]; -1: padding */
    const float *mask;                /* [batch or 1, columns, used], added to scores; NULL: causal */
    Py_ssize_t mask_step;             /* from one batch row's to the next's */
    float *sums;                      /* [rows, hidden], y without padding: in y itself, or scratch memory */
    float *normed, *queries, *new_keys, *new_values, *attended, *gate, *up, *scores; /* scratch memory */
    Py_ssize_t stride; /* scores of one query; each thread has MAX_QUERIES times as many */
} Layer;

typedef struct {
    /* y = x / sqrt(mean(x^2) + epsilon) * weight, of `size` numbers. */
    void (*normalise)(float *y, const float *x, const float *weight, float epsilon, Py_ssize_t size);
    /* Attention of `count` queries of one key head, the first one included; queries are numbered column by column. */
    void (*attend)(const Layer *layer, Py_ssize_t row, Py_ssize_t key_head, Py_ssize_t first, int count,
                   float *scores);
    /* gate = silu(gate) * up */
    void (*activate)(float *gate, const float *up, Py_ssize_t size);
} LayerKernel;

#if HAS_KERNELS
extern const LayerKernel AVX512_LAYER, AVX2_LAYER;
#endif

/* Arrays that a call reads from, to be released. */
typedef struct {
    Py_buffer weights[PRODUCTS], biases[PRODUCTS], norms[NORMS];
} LayerArrays;

/* Parse (products, norms, sizes, rotary), as `layer` documents them, and check that they fit the layer, of which batch,
   columns, x, y and threads are set. `rows` and those of the products are left to the caller. Returns -1 with an error
   set; `arrays` are to be released in any case. */
int take_layer(Layer *layer, LayerArrays *arrays, PyObject *parts);
void release_layer(LayerArrays *arrays);

/* Raise ValueError; returns -1. */
int fail_layer(const char *what);

/* Run a function of the threads on `given`. Thread `number` of `count` takes the items first_of .. last_of - 1 of
   `all`. */
typedef struct {
    int number, count;
} Share;

int layer_threads(int wanted);
void run_layer_threads(void (*run)(void *), void *given, int threads);
Share own_share(int threads);
Py_ssize_t first_of(Share share, Py_ssize_t all);
Py_ssize_t last_of(Share share, Py_ssize_t all);
void wait_in(Share share);
void multiply_share(const Product *products, int count, Share share);

/* The function of the module that computes layers. */
PyObject *run_layer(PyObject *module, PyObject *args);
extern const char layer_doc[];

#endif

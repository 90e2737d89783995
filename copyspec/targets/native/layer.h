/* A decoder layer of Llama's kind, and the kernels that compute its parts beside the products.

   In float32 the whole layer is computed, and in bfloat16 where its attention is bitwise equal to PyTorch's.
   Elsewhere attention is PyTorch's: the layer is computed up to the queries, keys and values, and from the attention's
   output on. */

#ifndef COPYSPEC_LAYER_H
#define COPYSPEC_LAYER_H

#include "linear.h"

enum { QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN, PRODUCTS };
enum { BEFORE_ATTENTION, BEFORE_MLP, OF_QUERIES, OF_KEYS, NORMS };

#define MAX_QUERIES 4 /* of one call of `attend` */

/* What layers of both data types have. Numbers are of the layer's type. */
typedef struct {
    Product products[PRODUCTS];
    const void *norms[NORMS]; /* weights of the RMSNorms; NULL for queries and keys that have none */
    float epsilon;
    Py_ssize_t batch, columns, hidden, inner; /* inner: width of the MLP */
    Py_ssize_t rows; /* tokens that are computed */
    Py_ssize_t heads, key_heads, head_size;
    const void *x, *cosines, *sines; /* [batch, columns, hidden]; [batch or 1, columns, turned] */
    void *y;
    Py_ssize_t turned, turned_step; /* numbers of a head that are rotated; from one batch row's to the next's */
    int threads;
} Layer;

/* Padding is left out: the computed tokens are numbered in order, and those of a batch row follow each other. */
typedef struct {
    Layer layer;
    const Py_ssize_t *places;        /* of the tokens among batch * columns */
    Py_ssize_t begins[MAX_ROWS + 1]; /* of the batch rows among the tokens */
    int is_padded;                   /* whether there is padding */
    float scaling;                   /* of the scores */
    float *keys, *values;   /* of the cache, [batch, key_heads, capacity, head_size] */
    Py_ssize_t capacity, start, used; /* first slot written, where `slots` is NULL; slots attended to */
    const int64_t *slots;             /* [batch, columns]; -1: padding */
    const float *mask;                /* [batch or 1, columns, used], added to scores; NULL: causal */
    Py_ssize_t mask_step;             /* from one batch row's to the next's */
    float *sums;                      /* [rows, hidden], y without padding: in y itself, or scratch memory */
    float *normed, *queries, *new_keys, *new_values, *attended, *gate, *up, *scores; /* scratch memory */
    Py_ssize_t stride; /* scores of one query; each thread has MAX_QUERIES times as many */
} Float32Layer;

/* What the tokens of a pass attend to in bfloat16: the first slots of their batch row's cache, and slots after them,
   the last of which is a token's own. */
typedef struct {
    uint16_t *keys, *values; /* of the cache, [batch, key_heads, capacity, head_size] */
    Py_ssize_t capacity, key_heads;
    Py_ssize_t rows;       /* tokens that are computed: padding is left out */
    const int64_t *places; /* [rows]: of the tokens among batch * columns, rising */
    const int64_t *starts; /* [rows]: the number of first slots */
    const int64_t *paths;  /* [rows, width]: the slots after those, in order, padded with -1 */
    Py_ssize_t width;
    Py_ssize_t seen[MAX_ROWS];     /* number of slots that a token attends to */
    Py_ssize_t of_batch[MAX_ROWS]; /* the batch row of a token */
    int registers;                 /* that take turns in PyTorch's sums of exponentials: 1 or 2 */
    float scaling;                 /* of the scores */
} Attention;

/* The tokens that attend, and their heads. */
typedef struct {
    Py_ssize_t rows, queries, keys, size;
} Heads;

#define MAX_SCORES 512 /* of a query, computed at a time */

/* A layer in bfloat16, or a half of it. Products are bitwise equal to `linear`; other numbers are computed in float32
   and rounded wherever PyTorch rounds them. The first half's y is queries, keys and values: [rows, all heads,
   head_size] one by one. */
typedef struct {
    Layer layer;
    const uint16_t *attended;   /* [rows, heads, head_size]; NULL in the first half */
    const Attention *attention; /* of the whole layer; NULL in halves, which compute padding, too */
    const uint16_t *silu;       /* of all 65,536 numbers */
    float *given, *wide; /* scratch memory: inputs of products, [rows, hidden or queries] and [rows, inner] */
    uint16_t *gate, *up, *made;
    uint16_t *outputs; /* `attended` of the whole layer; scratch memory */
    float *space;      /* of `attend`, for each thread; scratch memory */
} Bfloat16Layer;

typedef struct {
    /* y = x / sqrt(mean(x^2) + epsilon) * weight, of `size` numbers. */
    void (*normalise)(float *y, const float *x, const float *weight, float epsilon, Py_ssize_t size);
    /* Attention of `count` queries of one key head, the first one included; queries are numbered column by column. */
    void (*attend)(const Float32Layer *layer, Py_ssize_t row, Py_ssize_t key_head, Py_ssize_t first, int count,
                   float *scores);
    /* gate = silu(gate) * up */
    void (*activate)(float *gate, const float *up, Py_ssize_t size);
} Float32LayerKernel;

typedef struct {
    /* y = x / sqrt(mean(x^2) + epsilon) * weight, of `size` numbers, rounded as PyTorch does; y may be x. */
    void (*normalise)(uint16_t *y, const uint16_t *x, const uint16_t *weight, float epsilon, Py_ssize_t size);
    /* Rotary position embedding of one head. */
    void (*turn)(uint16_t *head, const uint16_t *cosines, const uint16_t *sines, Py_ssize_t turned);
    /* gate = silu(gate) * up */
    void (*activate)(uint16_t *gate, const uint16_t *up, const uint16_t *silu, Py_ssize_t size);
    void (*add)(uint16_t *y, const uint16_t *x, const uint16_t *z, Py_ssize_t size); /* y = x + z */
    /* Inputs first .. last - 1 of a row of x, both even, as packed weights are multiplied by them. */
    void (*arrange)(float *y, const uint16_t *x, Py_ssize_t first, Py_ssize_t last, Py_ssize_t in);
    /* Attention of `count` queries of one token and key head, bitwise equal to PyTorch's for one token; NULL where
       that is not known to be so. memory: ATTENTION_SPACE numbers. */
    void (*attend)(const Attention *attention, int count, const uint16_t *queries, uint16_t *outputs, Py_ssize_t row,
                   Py_ssize_t key_head, Py_ssize_t size, float *memory);
} Bfloat16LayerKernel;

#define ATTENTION_SPACE(size) (MAX_QUERIES * (MAX_SCORES + 3 * (size)))

#if HAS_KERNELS
extern const Float32LayerKernel AVX512_FLOAT32_LAYER, AVX2_FLOAT32_LAYER;
extern const Bfloat16LayerKernel AVX512_BFLOAT16_LAYER, AVX2_BFLOAT16_LAYER;
void avx2_attend(const Attention *attention, int count, const uint16_t *queries, uint16_t *outputs, Py_ssize_t row,
                 Py_ssize_t key_head, Py_ssize_t size, float *memory); /* of AVX2_BFLOAT16_LAYER */
#endif

/* Arrays that a call reads from, to be released. */
typedef struct {
    Py_buffer weights[PRODUCTS], biases[PRODUCTS], norms[NORMS];
} LayerArrays;

/* Parse (products, norms, sizes, rotary), as `layer` documents them, and check that they fit the layer, of which batch,
   columns, x, y and threads are set. `rows` and those of the products are left to the caller. `product`: data type and
   settings of all products. Returns -1 with an error set; `arrays` are to be released in any case. */
int take_layer(Layer *layer, LayerArrays *arrays, PyObject *parts, Product product);
void release_layer(LayerArrays *arrays);

/* Raise ValueError; returns -1. */
int fail_layer(const char *what);

/* Check that heads can be computed. Returns -1 with an error set. */
int check_heads(Py_ssize_t heads, Py_ssize_t key_heads, Py_ssize_t size);

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

/* Arrays that attention reads from, to be released. */
typedef struct {
    Py_buffer places, starts, paths;
} AttentionArrays;

/* Parse (keys, values, capacity, scaling, places, starts, paths, registers) of a pass of batch * columns tokens, padding
   included; `arrays` are to be released in any case. Returns -1 with an error set. */
int take_attention(Attention *attention, AttentionArrays *arrays, PyObject *given, Py_ssize_t batch,
                   Py_ssize_t columns, Py_ssize_t key_heads);
void release_attention(AttentionArrays *arrays);

/* Returns -1 with an error set if attention is not computed for this processor. */
int check_attention(void);

#if HAS_KERNELS
const Bfloat16LayerKernel *bfloat16_layer_kernel(void);

/* A thread's share of the attention of all tokens: queries, and outputs, are [rows, queries, size]. space:
   ATTENTION_SPACE for each thread. */
void share_attention(const Attention *attention, const Heads *heads, const uint16_t *queries, uint16_t *outputs,
                  float *space, Share share);
#endif

/* The functions of the module that compute layers, and parts of them. */
PyObject *run_layer(PyObject *module, PyObject *args);
PyObject *run_half_layer(PyObject *module, PyObject *args);
PyObject *run_bfloat16_layer(PyObject *module, PyObject *args);
PyObject *run_attention(PyObject *module, PyObject *args);
PyObject *attends(PyObject *module, PyObject *args);
extern const char layer_doc[], half_layer_doc[], bfloat16_layer_doc[], attention_doc[], attends_doc[];

#endif

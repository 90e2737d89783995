/* The function `half_layer`: a decoder layer of Llama's kind in bfloat16, up to its attention or from it on. */

#include "layer.h"

#include <string.h>

#if HAS_KERNELS

static const Bfloat16LayerKernel *
kernel(void)
{
    return kernel_for(BFLOAT16) == &AVX512_KERNEL ? &AVX512_BFLOAT16_LAYER : &AVX2_BFLOAT16_LAYER;
}

/* Normalise a thread's share of the rows of x as inputs of products. */
static void
normalise_rows(const Bfloat16Half *h, const uint16_t *x, const uint16_t *weight, Share share)
{
    const Layer *l = &h->layer;
    for (Py_ssize_t row = first_of(share, l->rows); row < last_of(share, l->rows); row++) {
        kernel()->normalise(h->given + row * l->hidden, x + row * l->hidden, weight, l->epsilon, l->hidden);
    }
}

static void
place(const Layer *l, uint16_t *head, Py_ssize_t row, const uint16_t *norm, float *space)
{
    if (norm != NULL) {
        kernel()->normalise(space, head, norm, l->epsilon, l->head_size);
        kernel()->narrow(head, space, l->head_size);
    }
    const Py_ssize_t at = row / l->columns * l->turned_step + row % l->columns * l->turned;
    kernel()->turn(head, (const uint16_t *)l->cosines + at, (const uint16_t *)l->sines + at,
                               l->turned);
}

/* Up to the queries, keys and values. */
static void
run_first(const Bfloat16Half *h, Share share)
{
    const Layer *l = &h->layer;
    normalise_rows(h, l->x, l->norms[BEFORE_ATTENTION], share);
    wait_in(share);
    multiply_share(l->products + QUERY, 3, share);
    wait_in(share);
    uint16_t *queries = (uint16_t *)l->products[QUERY].y, *keys = (uint16_t *)l->products[KEY].y;
    for (Py_ssize_t row = first_of(share, l->rows); row < last_of(share, l->rows); row++) {
        float *space = h->given + row * l->heads * l->head_size; /* the inputs are multiplied */
        for (Py_ssize_t head = 0; head < l->heads; head++) {
            place(l, queries + (row * l->heads + head) * l->head_size, row, l->norms[OF_QUERIES], space);
        }
        for (Py_ssize_t head = 0; head < l->key_heads; head++) {
            place(l, keys + (row * l->key_heads + head) * l->head_size, row, l->norms[OF_KEYS], space);
        }
    }
}

/* y = x + what was made, in the outputs that a thread has multiplied. */
static void
add_share(const Bfloat16Half *h, const uint16_t *x, Share share)
{
    const Layer *l = &h->layer;
    const Py_ssize_t panels = l->hidden / PANEL, first = first_of(share, panels) * PANEL;
    for (Py_ssize_t row = 0; row < l->rows; row++) {
        const Py_ssize_t at = row * l->hidden + first;
        kernel()->add((uint16_t *)l->y + at, x + at, h->made + at, last_of(share, panels) * PANEL - first);
    }
}

/* From the attention's output on. */
static void
run_second(const Bfloat16Half *h, Share share)
{
    const Layer *l = &h->layer;
    const Py_ssize_t queries = l->heads * l->head_size;
    for (Py_ssize_t row = first_of(share, l->rows); row < last_of(share, l->rows); row++) {
        kernel()->widen(h->given + row * queries, h->attended + row * queries, queries);
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
        kernel()->activate(h->wide + at, h->gate + at, h->up + at, h->silu, count);
    }
    wait_in(share);
    multiply_share(l->products + DOWN, 1, share);
    add_share(h, l->y, share);
}

static void
run_share(void *given)
{
    const Bfloat16Half *h = given;
    const Share share = own_share(h->layer.threads);
    (h->attended == NULL ? run_first : run_second)(h, share);
}

/* Lay out the scratch memory and run the half. Returns -1 if out of memory. */
static int
run_half(Bfloat16Half *h)
{
    Layer *l = &h->layer;
    const size_t rows = (size_t)l->rows, hidden = (size_t)l->hidden, inner = (size_t)l->inner;
    const size_t queries = (size_t)(l->heads * l->head_size);
    const size_t given = rows * (hidden > queries ? hidden : queries);
    l->threads = layer_threads(l->threads);
    char *memory = PyMem_RawMalloc(sizeof(float) * (given + rows * inner) +
                                   sizeof(uint16_t) * (2 * rows * inner + rows * hidden));
    if (memory == NULL) {
        return -1;
    }
    h->given = (float *)memory;
    h->wide = h->given + given;
    h->gate = (uint16_t *)(h->wide + rows * inner);
    h->up = h->gate + rows * inner;
    h->made = h->up + rows * inner;
    uint16_t *y = l->y, *keys = y + rows * queries, *values = keys + rows * (size_t)(l->key_heads * l->head_size);
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
run_half(Bfloat16Half *h)
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

PyObject *
run_half_layer(PyObject *Py_UNUSED(module), PyObject *args)
{
    Bfloat16Half h = {0};
    Layer *l = &h.layer;
    LayerArrays arrays = {0};
    Py_buffer silu = {0};
    PyObject *parts, *silu_array, *result = NULL;
    Product product = {.kind = BFLOAT16};
    unsigned long long y, x, attended;
    int is_good;
    if (!PyArg_ParseTuple(args, "KKKnnO!nOi", &y, &x, &attended, &l->batch, &l->columns, &PyTuple_Type, &parts,
                          &product.apart, &silu_array, &l->threads)) {
        return NULL;
    }
#if HAS_KERNELS
    if (kernel_for(BFLOAT16) == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this processor cannot: instructions() is empty");
        return NULL;
    }
#endif
    l->y = (void *)(uintptr_t)y, l->x = (const void *)(uintptr_t)x;
    h.attended = (const uint16_t *)(uintptr_t)attended;
    is_good = take_layer(l, &arrays, parts, product) == 0 && (are_packed(l) ? 1 : fail_layer("weights") == 0);
    l->rows = l->batch * l->columns;
    is_good = is_good && (l->rows <= MOST_ROWS ? 1 : fail_layer("rows") == 0);
    if (is_good) {
        is_good = take(&silu, "silu", silu_array, 1, 0, "H") == 0 &&
                  (silu.shape[0] == 65536 ? 1 : fail_layer("values of silu") == 0);
        h.silu = silu.buf;
    }
    if (is_good) {
        int failed;
        Py_BEGIN_ALLOW_THREADS
        failed = run_half(&h);
        Py_END_ALLOW_THREADS
        result = failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
    }
    PyBuffer_Release(&silu);
    release_layer(&arrays);
    return result;
}

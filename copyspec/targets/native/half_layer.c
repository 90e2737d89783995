/* The function `half_layer`: a decoder layer of Llama's kind in bfloat16, up to its attention or from it on. */

#include "layer.h"

#include <string.h>

#if HAS_KERNELS

/* Normalise a thread's share of the rows of x as inputs of products. */
static void
normalise_rows(const BrainLayer *l, const uint16_t *x, const uint16_t *weight, Share share)
{
    for (Py_ssize_t row = first_of(share, l->rows); row < last_of(share, l->rows); row++) {
        AVX512_BRAINS.normalise(l->given + row * l->hidden, x + row * l->hidden, weight, l->epsilon, l->hidden);
    }
}

static void
place(const BrainLayer *l, uint16_t *head, Py_ssize_t row, const uint16_t *norm, float *space)
{
    if (norm != NULL) {
        AVX512_BRAINS.normalise(space, head, norm, l->epsilon, l->head_size);
        AVX512_BRAINS.narrow(head, space, l->head_size);
    }
    const Py_ssize_t at = row / l->columns * l->turned_step + row % l->columns * l->turned;
    AVX512_BRAINS.turn(head, l->cosines + at, l->sines + at, l->turned);
}

/* Up to the queries, keys and values. */
static void
run_first(const BrainLayer *l, Share share)
{
    normalise_rows(l, l->x, l->norms[BEFORE_ATTENTION], share);
    wait_in(share);
    multiply_share(l->products + QUERY, 3, share);
    wait_in(share);
    uint16_t *queries = (uint16_t *)l->products[QUERY].y, *keys = (uint16_t *)l->products[KEY].y;
    for (Py_ssize_t row = first_of(share, l->rows); row < last_of(share, l->rows); row++) {
        float *space = l->given + row * l->heads * l->head_size; /* the inputs are multiplied */
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
add_share(const BrainLayer *l, const uint16_t *x, Share share)
{
    const Py_ssize_t panels = l->hidden / PANEL, first = first_of(share, panels) * PANEL;
    for (Py_ssize_t row = 0; row < l->rows; row++) {
        const Py_ssize_t at = row * l->hidden + first;
        AVX512_BRAINS.add(l->y + at, x + at, l->made + at, last_of(share, panels) * PANEL - first);
    }
}

/* From the attention's output on. */
static void
run_second(const BrainLayer *l, Share share)
{
    const Py_ssize_t queries = l->heads * l->head_size;
    for (Py_ssize_t row = first_of(share, l->rows); row < last_of(share, l->rows); row++) {
        AVX512_BRAINS.widen(l->given + row * queries, l->attended + row * queries, queries);
    }
    wait_in(share);
    multiply_share(l->products + OUTPUT, 1, share);
    add_share(l, l->x, share);
    wait_in(share);
    normalise_rows(l, l->y, l->norms[BEFORE_MLP], share);
    wait_in(share);
    multiply_share(l->products + GATE, 1, share);
    multiply_share(l->products + UP, 1, share);
    const Py_ssize_t panels = l->inner / PANEL, first = first_of(share, panels) * PANEL;
    for (Py_ssize_t row = 0; row < l->rows; row++) {
        const Py_ssize_t at = row * l->inner + first;
        AVX512_BRAINS.activate(l->wide + at, l->gate + at, l->up + at, l->silu, last_of(share, panels) * PANEL - first);
    }
    wait_in(share);
    multiply_share(l->products + DOWN, 1, share);
    add_share(l, l->y, share);
}

static void
run_share(void *given)
{
    const BrainLayer *l = given;
    const Share share = l->threads > 1 ? (Share){thread_number(), thread_count()} : (Share){0, 1};
    (l->attended == NULL ? run_first : run_second)(l, share);
}

/* Lay out the scratch memory and run the half. Returns -1 if out of memory. */
static int
run_half(BrainLayer *l)
{
    const size_t rows = (size_t)l->rows, hidden = (size_t)l->hidden, inner = (size_t)l->inner;
    const size_t queries = (size_t)(l->heads * l->head_size);
    const size_t given = rows * (hidden > queries ? hidden : queries);
    l->threads = run_parallel != NULL ? l->threads : 1;
    char *memory = PyMem_RawMalloc(sizeof(float) * (given + rows * inner) +
                                   sizeof(uint16_t) * (2 * rows * inner + rows * hidden));
    if (memory == NULL) {
        return -1;
    }
    l->given = (float *)memory;
    l->wide = l->given + given;
    l->gate = (uint16_t *)(l->wide + rows * inner);
    l->up = l->gate + rows * inner;
    l->made = l->up + rows * inner;
    Product *p = l->products;
    uint16_t *keys = l->y + rows * queries, *values = keys + rows * (size_t)(l->key_heads * l->head_size);
    uint16_t *const outputs[PRODUCTS] = {l->y, keys, values, l->made, l->gate, l->up, l->made};
    for (int i = 0; i < PRODUCTS; i++) {
        p[i].scratch = i == DOWN ? l->wide : l->given;
        p[i].y = (char *)outputs[i];
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
run_half(BrainLayer *l)
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

static int
check_half(BrainLayer *l)
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
        if (p[i].out != shapes[i][0] || p[i].in != shapes[i][1] || !p[i].is_packed) {
            return fail("weights");
        }
        p[i].rows = l->rows, p[i].threads = l->threads;
        p[i].x = (const char *)l->x, p[i].y = (char *)l->y;
        if (check_product(&p[i]) < 0) {
            return -1;
        }
    }
    if (l->turned < 0 || l->turned % 2 != 0 || l->turned > l->head_size || l->cosines == NULL || l->sines == NULL) {
        return fail("positions");
    }
    l->turned_step = l->turned_step != 0 ? l->columns * l->turned : 0;
    return 0;
}

const char half_layer_doc[] =
    "half_layer(y, x, attended, batch, columns, products, norms, sizes, rotary, silu, threads)\n\n"
    "A decoder layer of Llama's kind in bfloat16, with packed weights. With attended = 0 it writes queries, keys and "
    "values, [batch, columns, heads, head size] one after the other, to the address y; x is the address of the layer's "
    "input, [batch, columns, hidden]. Else attended is the address of the attention's output, and the layer's is "
    "written to y. products, norms: as for `layer`, of bfloat16's bits; sizes: (heads, key heads, head size, epsilon, "
    "apart); rotary: (address of cosines, of sines, turned numbers, whether each row has its "
    "own); silu: of all numbers, [65536].";

PyObject *
run_half_layer(PyObject *Py_UNUSED(module), PyObject *args)
{
    BrainLayer l = {0};
    Py_buffer weights[PRODUCTS] = {{0}}, biases[PRODUCTS] = {{0}}, norms[NORMS] = {{0}}, silu = {0};
    PyObject *pairs[PRODUCTS], *norm_arrays[NORMS], *silu_array, *result = NULL;
    unsigned long long y, x, attended, cosines, sines;
    Py_ssize_t apart;
    int is_turned_by_row, is_good = 1;
    if (!PyArg_ParseTuple(args, "KKKnn(OOOOOOO)(OOOO)(nnnfn)(KKnp)Oi", &y, &x, &attended, &l.batch, &l.columns,
                          &pairs[0], &pairs[1], &pairs[2], &pairs[3], &pairs[4], &pairs[5], &pairs[6], &norm_arrays[0],
                          &norm_arrays[1], &norm_arrays[2], &norm_arrays[3], &l.heads, &l.key_heads, &l.head_size,
                          &l.epsilon, &apart, &cosines, &sines, &l.turned, &is_turned_by_row, &silu_array,
                          &l.threads)) {
        return NULL;
    }
#if HAS_KERNELS
    if (kernel_for(BFLOAT16) != &AVX512_KERNEL) {
        PyErr_SetString(PyExc_ValueError, "half_layer needs the avx512 instructions of bfloat16");
        return NULL;
    }
#endif
    l.y = (uint16_t *)(uintptr_t)y, l.x = (const uint16_t *)(uintptr_t)x;
    l.attended = (const uint16_t *)(uintptr_t)attended;
    l.cosines = (const uint16_t *)(uintptr_t)cosines, l.sines = (const uint16_t *)(uintptr_t)sines;
    l.turned_step = is_turned_by_row;
    for (int i = 0; i < PRODUCTS && is_good; i++) {
        PyObject *weight, *bias;
        l.products[i].kind = BFLOAT16, l.products[i].apart = apart;
        is_good = PyArg_ParseTuple(pairs[i], "OO", &weight, &bias) &&
                  take_weight(&l.products[i], &weights[i], &biases[i], weight, bias) == 0;
    }
    is_good = is_good && check_half(&l) == 0;
    if (is_good) {
        is_good = take(&silu, "silu", silu_array, 1, 0, "H") == 0 &&
                  (silu.shape[0] == 65536 ? 1 : fail("values of silu") == 0);
        l.silu = silu.buf;
    }
    for (int i = 0; i < NORMS && is_good; i++) {
        if (norm_arrays[i] != Py_None || i < OF_QUERIES) {
            Py_ssize_t size = i < OF_QUERIES ? l.hidden : l.head_size;
            is_good = take(&norms[i], "norm", norm_arrays[i], 1, 0, "H") == 0 &&
                      (norms[i].shape[0] == size ? 1 : fail("norms") == 0);
            l.norms[i] = norms[i].buf;
        }
    }
    if (is_good) {
        int failed;
        Py_BEGIN_ALLOW_THREADS
        failed = run_half(&l);
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
    PyBuffer_Release(&silu);
    return result;
}

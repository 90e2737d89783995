/* The module `_trees`: operations on draft trees in every forward pass, without Python's time per node.

   `is_sound` is the fast check in tree.py's `fault`, `accepted` that in verification/walk.py, `lay_out` is `_fill` of
   targets/rows/passes.py (and `additive`, where it is given a mask), `lay_out_static` is `lay_out` of
   targets/static/layout.py, `fit_shared` is `_fit_shared` of decoding/loop.py, `in_order` `_in_order` of tree.py, and
   `record` `_record` of decoding/controller.py. They are described there and return the same, bit by bit. Every number
   is checked when it is read, so that no access is outside an array. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define VERSION 9 /* of the arguments and results; must equal VERSION in tree.py */
#define ROOT -1
#define WORD 63 /* bits of an int64 without its sign bit */

typedef int64_t Number;

/* Get a writable C-contiguous buffer; check its dimensions, and that items have `size` bytes. */
static int
take(Py_buffer *buffer, PyObject *array, int dimensions, Py_ssize_t size)
{
    if (PyObject_GetBuffer(array, buffer, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0) {
        return -1;
    }
    if (buffer->ndim != dimensions || buffer->itemsize != size) {
        PyErr_Format(PyExc_ValueError, "an array has %d dimensions and items of %zd bytes; %d and %zd are written",
                     buffer->ndim, buffer->itemsize, dimensions, size);
        PyBuffer_Release(buffer);
        return -1;
    }
    return 0;
}

static int
fail(const char *what)
{
    PyErr_Format(PyExc_ValueError, "%s do not fit the arrays", what);
    return -1;
}

/* Item `index` of a sequence returned by PySequence_Fast. */
static int
read_number(PyObject *items, Py_ssize_t index, Number *number)
{
    PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(items, index));
    *number = PyLong_AsLongLong(item);
    Py_DECREF(item);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Copy at most `most` numbers of `sequence` to `numbers`; returns their count, or -1. */
static Py_ssize_t
read_numbers(PyObject *sequence, Number *numbers, Py_ssize_t most)
{
    PyObject *items = PySequence_Fast(sequence, "uncached tokens, draft tokens and parents are sequences");
    if (items == NULL) {
        return -1;
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
    if (count > most) {
        Py_DECREF(items);
        return fail("uncached tokens and trees");
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        /* The conversion may run arbitrary Python code, which may shorten the list. */
        if (i >= PySequence_Fast_GET_SIZE(items) || read_number(items, i, numbers + i) < 0) {
            Py_DECREF(items);
            return PyErr_Occurred() ? -1 : fail("uncached tokens and trees");
        }
    }
    Py_DECREF(items);
    return count;
}

/* Read the tokens and parents of a tree; returns its size, or -1. */
static Py_ssize_t
read_tree(PyObject *tokens, PyObject *parents, Number *token, Number *parent, Py_ssize_t most)
{
    Py_ssize_t size = read_numbers(tokens, token, most);
    if (size < 0) {
        return -1;
    }
    Py_ssize_t edges = read_numbers(parents, parent, most);
    if (edges < 0) {
        return -1;
    }
    if (edges != size) {
        return fail("tokens and parents");
    }
    for (Py_ssize_t node = 0; node < size; node++) {
        if (parent[node] < ROOT || parent[node] >= node) {
            return fail("parents");
        }
    }
    return size;
}

typedef struct {
    Py_ssize_t rows, all;       /* all: tokens of all rows */
    Number *tokens, *positions; /* [all] */
    char *visible;              /* [n, L] of each row that has several tokens, after each other */
    Py_ssize_t seen;            /* items of `visible` */
    Number *parents;            /* [all], of the current row */
    void *mask;                 /* as `visible`: 0 where it is, else `lowest`; NULL: not wanted */
    Py_ssize_t mask_size;       /* bytes of its items: 2, 4 or 8 */
    uint64_t lowest;            /* the bits of such an item */
} Layout;

/* Where the next row begins. */
typedef struct {
    Py_ssize_t token, item;
} Place;

/* Write `count` items of the mask from item `first` on. */
static void
write_mask(const Layout *to, Py_ssize_t first, Py_ssize_t count)
{
    const char *seen = to->visible + first;
    if (to->mask_size == 2) {
        uint16_t *items = (uint16_t *)to->mask + first, lowest = (uint16_t)to->lowest;
        for (Py_ssize_t i = 0; i < count; i++) {
            items[i] = seen[i] ? 0 : lowest;
        }
    }
    else if (to->mask_size == 4) {
        uint32_t *items = (uint32_t *)to->mask + first, lowest = (uint32_t)to->lowest;
        for (Py_ssize_t i = 0; i < count; i++) {
            items[i] = seen[i] ? 0 : lowest;
        }
    }
    else {
        uint64_t *items = (uint64_t *)to->mask + first;
        for (Py_ssize_t i = 0; i < count; i++) {
            items[i] = seen[i] ? 0 : to->lowest;
        }
    }
}

static int
lay_out_row(const Layout *to, Place *at, Number start, PyObject *uncached, PyObject *tree_tokens,
            PyObject *tree_parents)
{
    const Py_ssize_t most = to->all - at->token;
    Number *tokens = to->tokens + at->token, *positions = to->positions + at->token;
    Py_ssize_t length = read_numbers(uncached, tokens, most);
    if (length < 1) {
        return length < 0 ? -1 : fail("uncached tokens");
    }
    Py_ssize_t size = read_tree(tree_tokens, tree_parents, tokens + length, to->parents, most - length);
    if (size < 0) {
        return -1;
    }
    const Py_ssize_t count = length + size;
    if (start < 0 || start > PY_SSIZE_T_MAX / 2 || start > PY_SSIZE_T_MAX / 2 / count - count) {
        return fail("starts");
    }
    const Py_ssize_t used = (Py_ssize_t)start + count;
    at->token += count;
    for (Py_ssize_t token = 0; token < count; token++) {
        positions[token] = token < length ? start + token : positions[length + to->parents[token - length]] + 1;
    }
    if (count == 1) {
        return 0; /* it sees all */
    }
    if (count > (to->seen - at->item) / used) {
        return fail("starts");
    }
    char *visible = to->visible + at->item;
    memset(visible, 0, (size_t)(count * used));
    for (Py_ssize_t token = 0; token < count; token++) {
        char *seen = visible + token * used;
        const Py_ssize_t slot = (Py_ssize_t)start + token;
        if (token < length) {
            memset(seen, 1, (size_t)slot);
        }
        else { /* what its parent sees */
            memcpy(seen, visible + (length + (Py_ssize_t)to->parents[token - length]) * used, (size_t)slot);
        }
        seen[slot] = 1;
    }
    if (to->mask != NULL) {
        write_mask(to, at->item, count * used);
    }
    at->item += count * used;
    return 0;
}

/* Whether all of the tuples have this many items. */
static int
have_rows(PyObject *const *tuples, int count, Py_ssize_t rows)
{
    for (int i = 0; i < count; i++) {
        if (PyTuple_GET_SIZE(tuples[i]) < rows) {
            return 0;
        }
    }
    return 1;
}

static void
release(PyObject **tuples, int count)
{
    for (int i = 0; i < count; i++) {
        Py_DECREF(tuples[i]);
    }
}

/* Convert the arguments to tuples, which Python code run in between cannot change. */
static int
take_tuples(PyObject *const *given, PyObject **taken, int count)
{
    for (int i = 0; i < count; i++) {
        taken[i] = PySequence_Tuple(given[i]);
        if (taken[i] == NULL) {
            release(taken, i);
            return -1;
        }
    }
    return 0;
}

static int
lay_out_rows(const Layout *to, PyObject *const *rows)
{
    Place at = {0};
    for (Py_ssize_t row = 0; row < to->rows; row++) {
        Number start;
        if (read_number(rows[0], row, &start) < 0
            || lay_out_row(to, &at, start, PyTuple_GET_ITEM(rows[1], row), PyTuple_GET_ITEM(rows[2], row),
                           PyTuple_GET_ITEM(rows[3], row)) < 0) {
            return -1;
        }
    }
    return at.token == to->all && at.item == to->seen ? 0 : fail("rows");
}

static PyObject *
lay_out(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given[4], *rows[4], *packed_array, *visible_array, *mask_array;
    Py_buffer packed, visible, mask = {0};
    Layout to = {0};
    unsigned long long lowest = 0;
    int failed = -1;
    if (!PyArg_ParseTuple(args, "OOOOOOOK", &given[0], &given[1], &given[2], &given[3], &packed_array, &visible_array,
                          &mask_array, &lowest)) {
        return NULL;
    }
    if (take_tuples(given, rows, 4) < 0) {
        return NULL;
    }
    if (take(&packed, packed_array, 2, sizeof(Number)) < 0) {
        goto no_packed;
    }
    if (take(&visible, visible_array, 1, 1) < 0) {
        goto no_visible;
    }
    if (mask_array != Py_None && PyObject_GetBuffer(mask_array, &mask, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0) {
        goto no_mask;
    }
    to.rows = PyTuple_GET_SIZE(rows[0]), to.all = packed.shape[1], to.seen = visible.shape[0];
    if (packed.shape[0] != 2 || !have_rows(rows, 4, to.rows)) {
        fail("rows");
    }
    else if (mask.obj != NULL
             && (mask.len != visible.len * mask.itemsize
                 || (mask.itemsize != 2 && mask.itemsize != 4 && mask.itemsize != 8))) {
        fail("masks");
    }
    else if ((to.parents = PyMem_Malloc((size_t)to.all * sizeof(Number) + 1)) == NULL) {
        PyErr_NoMemory();
    }
    else {
        to.tokens = packed.buf, to.positions = to.tokens + to.all;
        to.visible = visible.buf;
        to.mask = mask.obj != NULL ? mask.buf : NULL, to.mask_size = mask.itemsize, to.lowest = lowest;
        failed = lay_out_rows(&to, rows);
        PyMem_Free(to.parents);
    }
    PyBuffer_Release(&mask);
no_mask:
    PyBuffer_Release(&visible);
no_visible:
    PyBuffer_Release(&packed);
no_packed:
    release(rows, 4);
    return failed ? NULL : Py_NewRef(Py_None);
}

/* The array of a static pass, and what it is filled for (targets/static/layout.py). */
typedef struct {
    Number *fields;     /* [FIELDS + words, tokens] */
    Number *moves;      /* [2, most_moves] */
    Number *wanted;     /* [scored] */
    Number *units;      /* [1 + UNIT * most_units] */
    Py_ssize_t tokens, words, most_moves, scored, most_units;
    Py_ssize_t page, tile, split, first_split;
    int ordered;             /* paths in place of ancestor bits */
    Py_ssize_t next, count;  /* the next token, and the number of scored ones so far */
    Py_ssize_t *first;       /* [rows + 1], the first token of each row */
    Number *starts;          /* [rows] */
    Number *parents;         /* [tokens], of the current row */
} Static;

enum { TOKEN, POSITION, PLACE, TREE, NODE, ROW, PARTIAL, PARTIALS, STRIDE, FIELDS };
#define UNIT 5 /* fields of a unit of work */

/* One field of a token. */
static Number *
field(const Static *to, Py_ssize_t field, Py_ssize_t token)
{
    return to->fields + field * to->tokens + token;
}

/* Write positions and ancestor bits of `size` nodes behind a root at `position`. */
static void
place_nodes(const Static *to, Py_ssize_t first, Py_ssize_t size, Number position)
{
    for (Py_ssize_t node = 0; node < size; node++) {
        const Number parent = to->parents[node];
        const Py_ssize_t above = first + (Py_ssize_t)parent;
        const Number before = parent == ROOT ? position : *field(to, POSITION, above);
        *field(to, POSITION, first + node) = before + 1;
        if (to->ordered) {
            const Py_ssize_t depth = (Py_ssize_t)(before - position);
            for (Py_ssize_t step = 0; step < depth; step++) {
                *field(to, FIELDS + step, first + node) = *field(to, FIELDS + step, above);
            }
            *field(to, FIELDS + depth, first + node) = node;
            continue;
        }
        for (Py_ssize_t word = 0; word < to->words; word++) {
            Number *bits = field(to, FIELDS + word, first + node);
            *bits = parent == ROOT ? 0 : *field(to, FIELDS + word, above);
            if (node / WORD == word) {
                *bits |= (Number)1 << node % WORD;
            }
        }
    }
}

/* Where a slot of a row is in the pool, by the list of its pages, which Python code run in between may shorten. */
static int
find_place(const Static *to, PyObject *pages, Py_ssize_t slot, Number *place)
{
    const Py_ssize_t index = slot / to->page;
    if (slot < 0 || index >= PySequence_Fast_GET_SIZE(pages)) {
        return fail("pages");
    }
    if (read_number(pages, index, place) < 0) {
        return -1;
    }
    *place = *place * to->page + slot % to->page;
    return 0;
}

/* Lay out one row: its tokens and nodes, and which of them are scored. A row may have none. */
static int
place_row(Static *to, Py_ssize_t row, PyObject *const *rows)
{
    const Py_ssize_t first = to->next, room = to->tokens - first;
    Number number, scored, start;
    if (read_number(rows[0], row, &start) < 0 || read_number(rows[1], row, &number) < 0
        || read_number(rows[6], row, &scored) < 0) {
        return -1;
    }
    if (start < 0 || start > PY_SSIZE_T_MAX / 2) {
        return fail("starts");
    }
    const Py_ssize_t length = read_numbers(PyTuple_GET_ITEM(rows[3], row), field(to, TOKEN, first), room);
    if (length < 0) {
        return -1;
    }
    const Py_ssize_t size = read_tree(PyTuple_GET_ITEM(rows[4], row), PyTuple_GET_ITEM(rows[5], row),
                                      field(to, TOKEN, first) + length, to->parents, room - length);
    if (size < 0) {
        return -1;
    }
    const Py_ssize_t all = length + size, end = (Py_ssize_t)start + length;
    if ((length < 1 && size > 0) || scored < 0 || scored > all || to->count + scored > to->scored) {
        return fail("rows");
    }
    PyObject *pages = PySequence_Fast(PyTuple_GET_ITEM(rows[2], row), "a row's pages are a sequence");
    if (pages == NULL) {
        return -1;
    }
    for (Py_ssize_t slot = (Py_ssize_t)start, next; slot < (Py_ssize_t)start + all; slot = next) {
        Number place;
        if (find_place(to, pages, slot, &place) < 0) {
            Py_DECREF(pages);
            return -1;
        }
        next = slot + to->page - slot % to->page; /* where the next page begins */
        for (Py_ssize_t i = slot; i < next && i < (Py_ssize_t)start + all; i++, place++) {
            *field(to, POSITION, first + i - (Py_ssize_t)start) = i;
            *field(to, PLACE, first + i - (Py_ssize_t)start) = place;
        }
    }
    Py_DECREF(pages);
    for (Py_ssize_t token = first; token < first + all; token++) {
        *field(to, TREE, token) = end;
        *field(to, NODE, token) = first + length;
        *field(to, ROW, token) = number;
    }
    place_nodes(to, first + length, size, end - 1);
    for (Py_ssize_t token = first + all - (Py_ssize_t)scored; token < first + all; token++) {
        to->wanted[to->count++] = token;
    }
    to->starts[row] = start;
    to->first[row] = first;
    to->next = first + all;
    return 0;
}

/* Write the source and target of node `node` of a row, which was accepted as number `place` of its path; `first`: the
   slot of node 0. Returns 1, or 0 where it is in its place, or -1. */
static int
place_move(const Static *to, Py_ssize_t move, PyObject *pages, Number first, Number node, Py_ssize_t place)
{
    if (node == place) {
        return 0;
    }
    if (first < 0 || first > PY_SSIZE_T_MAX / 2 || node < 0 || node > PY_SSIZE_T_MAX / 2 || move == to->most_moves) {
        return fail("moves");
    }
    return find_place(to, pages, (Py_ssize_t)(first + node), to->moves + move) < 0
                   || find_place(to, pages, (Py_ssize_t)first + place, to->moves + to->most_moves + move) < 0
               ? -1
               : 1;
}

/* Write the moves of all rows; `rows` are their pages, their paths, and the slots of their first nodes. */
static int
place_moves(const Static *to, PyObject *const *rows)
{
    Py_ssize_t move = 0;
    for (Py_ssize_t row = 0; row < PyTuple_GET_SIZE(rows[0]); row++) {
        Number first, node;
        if (read_number(rows[2], row, &first) < 0) {
            return -1;
        }
        PyObject *pages = PySequence_Fast(PyTuple_GET_ITEM(rows[0], row), "a row's pages are a sequence");
        PyObject *path = pages == NULL ? NULL : PySequence_Fast(PyTuple_GET_ITEM(rows[1], row), "a path is a sequence");
        int moved = path == NULL ? -1 : 0;
        for (Py_ssize_t place = 0; moved >= 0 && place < PySequence_Fast_GET_SIZE(path); place++) {
            moved = read_number(path, place, &node) < 0 ? -1 : place_move(to, move, pages, first, node, place);
            move += moved > 0;
        }
        Py_XDECREF(pages);
        Py_XDECREF(path);
        if (moved < 0) {
            return -1;
        }
    }
    return 0;
}

/* Write the units of work for splits of this size; returns the number of their partial results, or -1 where these are
   too many. */
static Py_ssize_t
place_units(const Static *to, Py_ssize_t rows, Py_ssize_t split)
{
    Py_ssize_t unit = 0, partial = 0;
    for (Py_ssize_t row = 0; row < rows; row++) {
        const Py_ssize_t first = to->first[row], last = to->first[row + 1];
        for (Py_ssize_t begin = first; begin < last; begin += to->tile) {
            const Py_ssize_t count = last - begin < to->tile ? last - begin : to->tile;
            const Py_ssize_t end = to->ordered ? (Py_ssize_t)*field(to, POSITION, begin) + 1
                                               : (Py_ssize_t)to->starts[row] + begin + count - first;
            const Py_ssize_t parts = (end - 1) / split + 1;
            if (count > (to->most_units - partial) / parts) {
                return -1;
            }
            for (Py_ssize_t token = begin; token < begin + count; token++) {
                *field(to, PARTIAL, token) = partial + token - begin;
                *field(to, PARTIALS, token) = parts;
                *field(to, STRIDE, token) = count;
            }
            for (Py_ssize_t part = 0; part < parts; part++, unit++, partial += count) {
                Number *fields = to->units + 1 + UNIT * unit;
                fields[0] = begin, fields[1] = count, fields[2] = part * split;
                fields[3] = (part + 1) * split < end ? (part + 1) * split : end;
                fields[4] = partial;
            }
        }
    }
    to->units[0] = unit;
    return partial;
}

/* Fill the array; `rows` are starts, numbers, pages, uncached tokens, tokens and parents of trees, scored tokens, and of
   the rows with moves pages, paths, and the slots of the first nodes. */
static int
fill_static(Static *to, PyObject *const *rows, Number scratch)
{
    const Py_ssize_t count = PyTuple_GET_SIZE(rows[0]);
    memset(to->fields, 0, (size_t)((FIELDS + to->words) * to->tokens) * sizeof(Number));
    memset(to->moves, 0, (size_t)(2 * to->most_moves + to->scored) * sizeof(Number)); /* wanted ones follow */
    for (Py_ssize_t row = 0; row < count; row++) {
        if (place_row(to, row, rows) < 0) {
            return -1;
        }
    }
    to->first[count] = to->next;
    for (Py_ssize_t token = to->next; token < to->tokens; token++) {
        *field(to, TOKEN, token) = 0; /* where a row has been read that did not fit */
        *field(to, ROW, token) = scratch;
    }
    if (place_moves(to, rows + 7) < 0) {
        return -1;
    }
    Py_ssize_t split = to->split ? to->split : to->first_split;
    while (place_units(to, count, split) < 0) {
        if (to->split || split > PY_SSIZE_T_MAX / 4) {
            return fail("units");
        }
        split *= 2;
    }
    return 0;
}

static PyObject *
lay_out_static(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given[10], *rows[10], *array;
    Py_buffer host;
    Static to = {0};
    long long scratch;
    int failed = -1;
    if (!PyArg_ParseTuple(args, "OnnnnpOOOOOOOOOOLnnnn", &array, &to.tokens, &to.most_moves, &to.scored, &to.most_units,
                          &to.ordered, &given[0], &given[1], &given[2], &given[3], &given[4], &given[5], &given[6],
                          &given[7], &given[8], &given[9], &scratch, &to.page, &to.tile, &to.split, &to.first_split)
        || take_tuples(given, rows, 10) < 0) {
        return NULL;
    }
    if (take(&host, array, 1, sizeof(Number)) < 0) {
        goto no_host;
    }
    const Py_ssize_t count = PyTuple_GET_SIZE(rows[0]), most = host.shape[0];
    to.words = to.ordered ? to.tokens : (to.tokens + WORD - 1) / WORD;
    if (to.tokens < 1 || (to.ordered && to.tile != 1) || to.tokens > most || to.most_moves < 0 || to.most_moves > most || to.scored < 1
        || to.scored > to.tokens || to.most_units < to.tokens || to.most_units > most || to.page < 1 || to.tile < 1
        || to.split < 0 || to.first_split < 1 || !have_rows(rows, 7, count)
        || !have_rows(rows + 7, 3, PyTuple_GET_SIZE(rows[7]))
        || (FIELDS + to.words) * to.tokens + 2 * to.most_moves + to.scored + 1 + UNIT * to.most_units != most) {
        fail("rows");
        goto done;
    }
    to.fields = host.buf;
    to.moves = to.fields + (FIELDS + to.words) * to.tokens;
    to.wanted = to.moves + 2 * to.most_moves;
    to.units = to.wanted + to.scored;
    to.first = PyMem_Malloc((size_t)(count + 1) * sizeof(Py_ssize_t));
    to.starts = PyMem_Malloc((size_t)(count + 1) * sizeof(Number));
    to.parents = PyMem_Malloc((size_t)to.tokens * sizeof(Number));
    if (to.first == NULL || to.starts == NULL || to.parents == NULL) {
        PyErr_NoMemory();
    }
    else {
        failed = fill_static(&to, rows, scratch);
    }
    PyMem_Free(to.first);
    PyMem_Free(to.starts);
    PyMem_Free(to.parents);
done:
    PyBuffer_Release(&host);
no_host:
    release(rows, 10);
    return failed ? NULL : Py_NewRef(Py_None);
}

/* Unusually large trees are left to Python's check, whose time is not quadratic in their size. */
#define MAX_NODES 1024

static PyObject *
is_sound(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tree_tokens, *tree_parents, *others[3];
    Number tokens[MAX_NODES], parents[MAX_NODES];
    long long vocab_size;
    if (!PyArg_ParseTuple(args, "OOOOOL", &tree_tokens, &tree_parents, &others[0], &others[1], &others[2],
                          &vocab_size)) {
        return NULL;
    }
    Py_ssize_t size = read_tree(tree_tokens, tree_parents, tokens, parents, MAX_NODES);
    for (int i = 0; i < 3 && size >= 0; i++) {
        if ((i < 2 || others[i] != Py_None) && PyObject_Size(others[i]) != size) {
            size = -1;
        }
    }
    if (size < 0) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    for (Py_ssize_t node = 0; node < size; node++) {
        if (tokens[node] < 0 || tokens[node] >= vocab_size) {
            Py_RETURN_FALSE;
        }
        for (Py_ssize_t other = 0; other < node; other++) {
            if (tokens[other] == tokens[node] && parents[other] == parents[node]) {
                Py_RETURN_FALSE;
            }
        }
    }
    Py_RETURN_TRUE;
}

static PyObject *
accepted(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given[3], *taken[3], *path = NULL, *output = NULL, *found = NULL;
    if (!PyArg_ParseTuple(args, "OOO", &given[0], &given[1], &given[2]) || take_tuples(given, taken, 3) < 0) {
        return NULL;
    }
    Py_ssize_t size = PyTuple_GET_SIZE(taken[0]);
    Number wanted, at = ROOT;
    if (PyTuple_GET_SIZE(taken[1]) != size || PyTuple_GET_SIZE(taken[2]) <= size) {
        fail("tokens, parents and picks");
        goto done;
    }
    if (read_number(taken[2], 0, &wanted) < 0 || (path = PyList_New(0)) == NULL || (output = PyList_New(0)) == NULL
        || PyList_Append(output, PyTuple_GET_ITEM(taken[2], 0)) < 0) {
        goto done;
    }
    for (Py_ssize_t node = 0; node < size; node++) {
        Number parent, token;
        if (read_number(taken[1], node, &parent) < 0) {
            goto done;
        }
        if (parent != at) {
            continue;
        }
        if (read_number(taken[0], node, &token) < 0) {
            goto done;
        }
        if (token == wanted) {
            PyObject *number = PyLong_FromSsize_t(node);
            if (number == NULL || PyList_Append(path, number) < 0
                || PyList_Append(output, PyTuple_GET_ITEM(taken[2], node + 1)) < 0) {
                Py_XDECREF(number);
                goto done;
            }
            Py_DECREF(number);
            at = node;
            if (read_number(taken[2], node + 1, &wanted) < 0) {
                goto done;
            }
        }
    }
    found = PyTuple_Pack(2, path, output);
done:
    Py_XDECREF(path);
    Py_XDECREF(output);
    release(taken, 3);
    return found;
}

/* Item `index` of a tuple, as a floating-point number. */
static int
read_real(PyObject *items, Py_ssize_t index, double *number)
{
    *number = PyFloat_AsDouble(PyTuple_GET_ITEM(items, index));
    return *number == -1.0 && PyErr_Occurred() ? -1 : 0;
}

typedef struct {
    double worth; /* calibrated probability of the path to the node */
    Py_ssize_t node;
} Ranked;

/* The most likely node first, ties in stored order. */
static int
compare_ranked(const void *left, const void *right)
{
    const Ranked *one = left, *other = right;
    if (one->worth != other->worth) {
        return one->worth > other->worth ? -1 : 1;
    }
    return one->node < other->node ? -1 : 1;
}

/* The nodes of a draft, the likeliest first. */
typedef struct {
    Py_ssize_t size, most; /* nodes, and how many of them may be used */
    Py_ssize_t next;       /* the next one to be used */
    Ranked *ranked;        /* [size] */
    char *is_chosen;       /* [size], by node */
} Draft;

static void
release_drafts(Draft *drafts, Py_ssize_t rows)
{
    for (Py_ssize_t row = 0; drafts != NULL && row < rows; row++) {
        PyMem_Free(drafts[row].ranked);
    }
    PyMem_Free(drafts);
}

/* Rank the nodes of a tree by their calibrated probabilities: `calibrated_scores` of loop.py, then a stable sort.
   `worth` and `score` have room for all nodes. */
static int
rank(PyObject *parents, PyObject *scores, double scale, double *worth, double *score, Draft *draft)
{
    for (Py_ssize_t node = 0; node < draft->size; node++) {
        Number parent;
        double above = 1.0, parent_score = 1.0;
        if (read_number(parents, node, &parent) < 0 || read_real(scores, node, score + node) < 0) {
            return -1;
        }
        if (parent < ROOT || parent >= node) {
            return fail("parents");
        }
        if (parent != ROOT) {
            above = worth[parent], parent_score = score[parent];
        }
        double share = score[node] < parent_score ? score[node] / parent_score : 1.0; /* for its parent */
        worth[node] = parent_score > 0.0 && score[node] > 0.0 ? above * scale * share : 0.0;
        draft->ranked[node] = (Ranked){worth[node], node};
    }
    qsort(draft->ranked, (size_t)draft->size, sizeof(Ranked), compare_ranked);
    return 0;
}

/* Read a draft: its parents and scores, the factor for these, and how many of its nodes may be used; rank its nodes. */
static int
take_draft(PyObject *given, Draft *draft)
{
    PyObject *parts[2], *taken[2];
    double scale;
    if (!PyTuple_Check(given)) { /* PyArg_ParseTuple raises SystemError */
        PyErr_Format(PyExc_TypeError, "a draft is a tuple of parents, scores, scale and size, not %.100s",
                     Py_TYPE(given)->tp_name);
        return -1;
    }
    if (!PyArg_ParseTuple(given, "OOdn", &parts[0], &parts[1], &scale, &draft->most)
        || take_tuples(parts, taken, 2) < 0) {
        return -1;
    }
    const size_t size = (size_t)PyTuple_GET_SIZE(taken[0]);
    double *numbers = PyMem_Malloc((2 * size + 1) * sizeof(double));
    draft->size = (Py_ssize_t)size;
    draft->ranked = PyMem_Malloc((size + 1) * (sizeof(Ranked) + 1));
    int failed = -1;
    if (numbers == NULL || draft->ranked == NULL) {
        PyErr_NoMemory();
    }
    else if (PyTuple_GET_SIZE(taken[1]) != draft->size || draft->most < 0 || draft->most > draft->size) {
        fail("parents, scores and sizes");
    }
    else {
        draft->is_chosen = memset(draft->ranked + size + 1, 0, size);
        failed = rank(taken[0], taken[1], scale, numbers, numbers + size, draft);
    }
    PyMem_Free(numbers);
    release(taken, 2);
    return failed;
}

/* Read the drafts of all rows, of which some may be None. NULL with an error set. */
static Draft *
take_drafts(PyObject *given)
{
    const Py_ssize_t rows = PyTuple_GET_SIZE(given);
    Draft *drafts = PyMem_Calloc((size_t)rows + 1, sizeof(Draft));
    if (drafts == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t row = 0; row < rows; row++) {
        PyObject *draft = PyTuple_GET_ITEM(given, row);
        if (draft != Py_None && take_draft(draft, drafts + row) < 0) {
            release_drafts(drafts, rows);
            return NULL;
        }
    }
    return drafts;
}

/* Whether the next node of one draft precedes that of another: the likeliest first, ties by row. */
static int
precedes(const Draft *drafts, Py_ssize_t one, Py_ssize_t other)
{
    const double left = drafts[one].ranked[drafts[one].next].worth;
    const double right = drafts[other].ranked[drafts[other].next].worth;
    return left > right || (left == right && one < other);
}

/* Let the row at `place` sink in a heap of rows, whose first one has the likeliest next node. */
static void
sink(const Draft *drafts, Py_ssize_t *heap, Py_ssize_t count, Py_ssize_t place)
{
    for (Py_ssize_t child; (child = 2 * place + 1) < count; place = child) {
        if (child + 1 < count && precedes(drafts, heap[child + 1], heap[child])) {
            child++;
        }
        if (!precedes(drafts, heap[child], heap[place])) {
            return;
        }
        const Py_ssize_t row = heap[place];
        heap[place] = heap[child], heap[child] = row;
    }
}

/* How many nodes of all drafts pay, by the costs of a pass with 0, 1, ... nodes; `order`: the rows of as many nodes, the
   likeliest first. Returns -1 with an error set. `heap` has room for all rows, `order` for all costs. */
static Py_ssize_t
choose_count(Draft *drafts, Py_ssize_t rows, PyObject *costs, double allowed, Py_ssize_t *heap, Py_ssize_t *order)
{
    double cost, expected = (double)rows, best;
    Py_ssize_t chosen = 0, count = 0;
    if (read_real(costs, 0, &cost) < 0) {
        return -1;
    }
    best = expected / cost;
    for (Py_ssize_t row = 0; row < rows; row++) {
        if (drafts[row].most > 0) {
            heap[count++] = row;
        }
    }
    for (Py_ssize_t place = count / 2; place-- > 0;) {
        sink(drafts, heap, count, place);
    }
    for (Py_ssize_t n = 1; count > 0 && n < PyTuple_GET_SIZE(costs); n++) {
        Draft *draft = drafts + heap[0];
        if (read_real(costs, n, &cost) < 0) {
            return -1;
        }
        order[n - 1] = heap[0];
        expected += draft->ranked[draft->next++].worth;
        if (expected / cost > best && (double)rows * (cost - 1.0) <= allowed) {
            best = expected / cost, chosen = n;
        }
        if (draft->next == draft->most) {
            heap[0] = heap[--count];
        }
        sink(drafts, heap, count, 0);
    }
    return chosen;
}

/* The chosen nodes of a draft, in stored order. */
static PyObject *
list_chosen(const Draft *draft)
{
    PyObject *nodes = PyList_New(0);
    for (Py_ssize_t node = 0; nodes != NULL && node < draft->size; node++) {
        if (draft->is_chosen[node]) {
            PyObject *number = PyLong_FromSsize_t(node);
            if (number == NULL || PyList_Append(nodes, number) < 0) {
                Py_CLEAR(nodes);
            }
            Py_XDECREF(number);
        }
    }
    return nodes;
}

static PyObject *
fit_shared(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given[2], *taken[2], *chosen = NULL, *found = NULL;
    double allowed;
    if (!PyArg_ParseTuple(args, "OOd", &given[0], &given[1], &allowed) || take_tuples(given, taken, 2) < 0) {
        return NULL;
    }
    const Py_ssize_t rows = PyTuple_GET_SIZE(taken[0]), sizes = PyTuple_GET_SIZE(taken[1]);
    Draft *drafts = take_drafts(taken[0]);
    Py_ssize_t *heap = PyMem_Malloc((size_t)(rows + sizes + 1) * sizeof(Py_ssize_t)), *order;
    if (drafts == NULL || heap == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_NoMemory();
        }
        goto done;
    }
    if (sizes < 1) {
        fail("costs and drafts");
        goto done;
    }
    order = heap + rows;
    const Py_ssize_t count = choose_count(drafts, rows, taken[1], allowed, heap, order);
    if (count < 0 || (chosen = PyList_New(rows)) == NULL) {
        goto done;
    }
    for (Py_ssize_t row = 0; row < rows; row++) {
        drafts[row].next = 0;
    }
    for (Py_ssize_t n = 0; n < count; n++) {
        Draft *draft = drafts + order[n];
        draft->is_chosen[draft->ranked[draft->next++].node] = 1;
    }
    for (Py_ssize_t row = 0; row < rows; row++) {
        PyObject *nodes = list_chosen(drafts + row);
        if (nodes == NULL) {
            goto done;
        }
        PyList_SET_ITEM(chosen, row, nodes);
    }
    found = Py_BuildValue("nO", count, chosen);
done:
    Py_XDECREF(chosen);
    PyMem_Free(heap);
    release_drafts(drafts, rows);
    release(taken, 2);
    return found;
}

/* The items of a list that these places name. */
static PyObject *
pick_items(PyObject *items, const Number *places, Py_ssize_t count)
{
    PyObject *picked = PyList_New(count);
    for (Py_ssize_t i = 0; picked != NULL && i < count; i++) {
        PyList_SET_ITEM(picked, i, Py_NewRef(PyTuple_GET_ITEM(items, (Py_ssize_t)places[i])));
    }
    return picked;
}

static PyObject *
in_order(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given[5], *taken[5], *parents = NULL, *found = NULL;
    if (!PyArg_ParseTuple(args, "OOOOO", &given[0], &given[1], &given[2], &given[3], &given[4])
        || take_tuples(given, taken, 5) < 0) {
        return NULL;
    }
    const Py_ssize_t count = PyTuple_GET_SIZE(taken[4]);
    Py_ssize_t size = PyTuple_GET_SIZE(taken[0]); /* the first nodes, of which everything is known */
    while (!have_rows(taken, 4, size)) {
        size--;
    }
    Number *nodes = PyMem_Malloc((size_t)(size + count + 1) * sizeof(Number)), *places;
    if (nodes == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    places = nodes + count; /* by node */
    for (Py_ssize_t node = 0; node < size; node++) {
        places[node] = ROOT;
    }
    parents = PyList_New(count);
    for (Py_ssize_t place = 0; parents != NULL && place < count; place++) {
        Number parent, above = ROOT;
        PyObject *number = NULL;
        if (read_number(taken[4], place, nodes + place) < 0) {
            Py_CLEAR(parents);
            break;
        }
        if (nodes[place] < 0 || nodes[place] >= size) {
            fail("nodes");
        }
        else if (read_number(taken[1], (Py_ssize_t)nodes[place], &parent) == 0) {
            if (parent != ROOT && (parent < 0 || parent >= size || (above = places[parent]) == ROOT)) {
                fail("nodes and parents");
            }
            else {
                places[nodes[place]] = place;
                number = PyLong_FromLongLong(above);
            }
        }
        if (number == NULL) {
            Py_CLEAR(parents);
            break;
        }
        PyList_SET_ITEM(parents, place, number);
    }
    if (parents != NULL) {
        found = Py_BuildValue("NNNN", pick_items(taken[0], nodes, count), parents, pick_items(taken[2], nodes, count),
                              pick_items(taken[3], nodes, count));
    }
done:
    PyMem_Free(nodes);
    release(taken, 5);
    return found;
}

/* Add to the record what was expected of the children of `node` (the root: ROOT), and whether one was right. */
static int
record_node(PyObject *scores, Number node, double total, int was_right, double decay, double *expected, double *right)
{
    double above = 1.0;
    if (!(total > 0.0)) {
        return 0;
    }
    if (node != ROOT && read_real(scores, (Py_ssize_t)node, &above) < 0) {
        return -1;
    }
    double share = above > 0.0 ? total / above : 1.0;
    *expected = decay * *expected + (share < 1.0 ? share : 1.0);
    *right = decay * *right + was_right;
    return 0;
}

static PyObject *
record(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given[3], *taken[3], *found = NULL;
    double decay, expected, right;
    if (!PyArg_ParseTuple(args, "OOOddd", &given[0], &given[1], &given[2], &decay, &expected, &right)
        || take_tuples(given, taken, 3) < 0) {
        return NULL;
    }
    Py_ssize_t size = PyTuple_GET_SIZE(taken[0]), length = PyTuple_GET_SIZE(taken[2]);
    double *totals = PyMem_Calloc((size_t)size + 1, sizeof(double)); /* of the root's children, then of each node's */
    if (totals == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (PyTuple_GET_SIZE(taken[1]) != size) {
        fail("parents and scores");
        goto done;
    }
    for (Py_ssize_t node = 0; node < size; node++) {
        Number parent;
        double score;
        if (read_number(taken[0], node, &parent) < 0 || read_real(taken[1], node, &score) < 0) {
            goto done;
        }
        if (parent < ROOT || parent >= node) {
            fail("parents");
            goto done;
        }
        totals[parent + 1] += score;
    }
    if (record_node(taken[1], ROOT, totals[0], length > 0, decay, &expected, &right) < 0) {
        goto done;
    }
    for (Py_ssize_t depth = 0; depth < length; depth++) {
        Number node;
        if (read_number(taken[2], depth, &node) < 0) {
            goto done;
        }
        if (node < 0 || node >= size) {
            fail("paths");
            goto done;
        }
        if (record_node(taken[1], node, totals[node + 1], depth + 1 < length, decay, &expected, &right) < 0) {
            goto done;
        }
    }
    found = Py_BuildValue("dd", expected, right);
done:
    PyMem_Free(totals);
    release(taken, 3);
    return found;
}

PyDoc_STRVAR(is_sound_doc, "is_sound(tokens, parents, scores, origins, drafters, vocab_size)\n\n"
                           "Whether all are of one length (or no drafters given), parents come first, siblings differ\n"
                           "and tokens are ids; False where it cannot tell.");
PyDoc_STRVAR(accepted_doc, "accepted(tokens, parents, picked)\n\n"
                           "The accepted nodes and the output's tokens, where the target's is known after each node.");
PyDoc_STRVAR(lay_out_doc, "lay_out(starts, uncached, tokens, parents, packed, visible, mask, lowest)\n\n"
                          "Fills the arrays of passes.Pass; a mask's items are 0 or have the bits of `lowest`.");
PyDoc_STRVAR(lay_out_static_doc, "lay_out_static(host, tokens, moves, scored, units, ordered, ...)\n\n"
                                 "Fills the array of a static pass: static.layout.lay_out.");
PyDoc_STRVAR(fit_shared_doc, "fit_shared(drafts, costs, allowed)\n\n"
                             "How many nodes of all drafts together pay, and which of each, in stored order.");
PyDoc_STRVAR(in_order_doc, "in_order(tokens, parents, scores, origins, order)\n\n"
                           "Those of the subtree of these nodes, in this order.");
PyDoc_STRVAR(record_doc, "record(parents, scores, path, decay, expected, right)\n\n"
                         "`expected` and `right` after a pass that accepted `path`.");

static PyMethodDef methods[] = {
    {"is_sound", is_sound, METH_VARARGS, is_sound_doc},
    {"accepted", accepted, METH_VARARGS, accepted_doc},
    {"lay_out", lay_out, METH_VARARGS, lay_out_doc},
    {"lay_out_static", lay_out_static, METH_VARARGS, lay_out_static_doc},
    {"fit_shared", fit_shared, METH_VARARGS, fit_shared_doc},
    {"in_order", in_order, METH_VARARGS, in_order_doc},
    {"record", record, METH_VARARGS, record_doc},
    {NULL, NULL, 0, NULL},
};

static int
fill_module(PyObject *module)
{
    return PyModule_AddIntMacro(module, VERSION);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill_module},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_trees", "Draft trees, in every pass.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__trees(void)
{
    return PyModuleDef_Init(&definition);
}

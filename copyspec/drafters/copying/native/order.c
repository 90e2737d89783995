/* A grown tree in the order in which it is verified, with the places that its tokens were copied from. See draft.h. */

#include "draft.h"

#define OUTPUT (-1) /* of sources.py */

/* The sources of a context, and the one that the last position was found in. */
typedef struct {
    PyObject *starts, *sources, *lengths; /* the caller's */
    PyTypeObject *type; /* Origin */
    Py_ssize_t output_start, end;
    int64_t source, start, stop;
} Places;

/* Finds the source of `position`, which is no more than -1 below the first one's start. */
static int
find_source(Places *places, int64_t position)
{
    if (position >= places->output_start) {
        places->source = OUTPUT;
        places->start = places->output_start;
        places->stop = places->end;
        return 0;
    }
    Py_ssize_t low = 0, high = PyList_GET_SIZE(places->starts);
    while (low < high) { /* bisect_right */
        Py_ssize_t middle = low + (high - low) / 2;
        int64_t start;
        if (get_integer(places->starts, middle, &start) < 0) {
            return -1;
        }
        if (position < start) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    int64_t length;
    if (get_integer(places->starts, low - 1, &places->start) < 0 ||
        get_integer(places->sources, low - 1, &places->source) < 0 ||
        get_integer(places->lengths, low - 1, &length) < 0) {
        return -1;
    }
    if (length < 0 || places->start > INT64_MAX - length) {
        PyErr_Format(PyExc_ValueError, "a source of %lld tokens from %lld on", (long long)length,
                     (long long)places->start);
        return -1;
    }
    places->stop = places->start + length;
    return 0;
}

/* The Origin of a position; None below 0, and after the last token of its source. */
static PyObject *
origin_of(Places *places, int64_t position)
{
    if (position < 0) {
        Py_RETURN_NONE;
    }
    if (!(places->start <= position && position < places->stop) && find_source(places, position) < 0) {
        return NULL;
    }
    if (position >= places->stop) {
        Py_RETURN_NONE;
    }
    PyObject *source = PyLong_FromLongLong(places->source), *offset = PyLong_FromLongLong(position - places->start);
    PyObject *origin = source != NULL && offset != NULL ? places->type->tp_alloc(places->type, 2) : NULL;
    if (origin == NULL) {
        Py_XDECREF(source);
        Py_XDECREF(offset);
        return NULL;
    }
    PyTuple_SET_ITEM(origin, 0, source);
    PyTuple_SET_ITEM(origin, 1, offset);
    return origin;
}

/* Fills `order` with the nodes, those of the likeliest chain first, `place` with where each of them comes. */
static int
put_in_order(PyObject *parents, Py_ssize_t count, Py_ssize_t *order, Py_ssize_t *place, int64_t *above)
{
    Py_ssize_t last = ROOT, next = 0;
    for (Py_ssize_t node = 0; node < count; node++) {
        place[node] = -1;
        if (get_integer(parents, node, &above[node]) < 0) {
            return -1;
        }
        if (above[node] < ROOT || above[node] >= node) {
            PyErr_Format(PyExc_ValueError, "node %zd has the parent %lld; parents come first", node,
                         (long long)above[node]);
            return -1;
        }
        if (above[node] == last) {
            last = node;
            place[node] = next;
            order[next++] = node;
        }
    }
    for (Py_ssize_t node = 0; node < count; node++) {
        if (place[node] < 0) {
            place[node] = next;
            order[next++] = node;
        }
    }
    return 0;
}

PyObject *
draft_arrange(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tokens, *parents, *scores, *positions, *lists[4] = {NULL}, *all = NULL;
    Places places = {.start = 0, .stop = -1};
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "O!O!O!O!nO!O!O!nnO!", &PyList_Type, &tokens, &PyList_Type, &parents, &PyList_Type,
                          &scores, &PyList_Type, &positions, &count, &PyList_Type, &places.starts, &PyList_Type,
                          &places.sources, &PyList_Type, &places.lengths, &places.output_start, &places.end,
                          &PyType_Type, &places.type)) {
        return NULL;
    }
    if (!PyType_IsSubtype(places.type, &PyTuple_Type) || count < 0 || count > PyList_GET_SIZE(parents)) {
        PyErr_Format(PyExc_ValueError, "%zd nodes of %zd, with places of type %.200s", count, PyList_GET_SIZE(parents),
                     places.type->tp_name);
        return NULL;
    }
    Py_ssize_t *order = PyMem_New(Py_ssize_t, 2 * count + 1), *place = order + count;
    int64_t *above = PyMem_New(int64_t, count + 1);
    int failed = order == NULL || above == NULL;
    if (failed) {
        PyErr_NoMemory();
    }
    failed = failed || put_in_order(parents, count, order, place, above) < 0;
    for (int i = 0; i < 4 && !failed; i++) {
        lists[i] = open_list(count);
        failed = lists[i] == NULL;
    }
    for (Py_ssize_t i = 0; i < count && !failed; i++) {
        int64_t position;
        const Py_ssize_t node = order[i];
        PyObject *items[4] = {
            draft_item(tokens, node),
            PyLong_FromSsize_t(above[node] == ROOT ? ROOT : place[above[node]]),
            draft_item(scores, node),
            get_integer(positions, node, &position) < 0 ? NULL : origin_of(&places, position),
        };
        for (int j = 0; j < 4; j++) {
            failed |= items[j] == NULL;
            PyList_SET_ITEM(lists[j], i, items[j]);
        }
    }
    if (!failed) {
        for (int i = 0; i < 4; i++) {
            close_list(lists[i]);
        }
        all = PyTuple_Pack(4, lists[0], lists[1], lists[2], lists[3]);
    }
    for (int i = 0; i < 4; i++) {
        Py_XDECREF(lists[i]);
    }
    PyMem_Free(order);
    PyMem_Free(above);
    return all;
}

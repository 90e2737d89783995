/* The module `_growth`: arguments from Python, lists back. See draft.h. */

#include "draft.h"

#include <limits.h>

#define VERSION 1 /* of what the functions take and return: compiled.py knows the same */

static void
free_tables(PyObject *capsule)
{
    Tables *tables = PyCapsule_GetPointer(capsule, "copyspec.Tables");
    if (tables != NULL) {
        PyMem_Free(tables->following);
        PyMem_Free(tables->length);
        PyMem_Free(tables->crowd_row);
        PyMem_Free(tables);
    }
}

/* The integers of a list, from 0 to below `most`, in memory of our own; NULL with an exception. */
static int *
integers(PyObject *list, long most)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    int *numbers = PyMem_New(int, count + 1);
    if (numbers == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        long each = PyLong_AsLong(PyList_GET_ITEM(list, i));
        if (each < 0 || each >= most) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_ValueError, "a table holds %ld; from 0 to %ld are known", each, most - 1);
            }
            PyMem_Free(numbers);
            return NULL;
        }
        numbers[i] = (int)each;
    }
    return numbers;
}

PyDoc_STRVAR(make_tables_doc,
             "make_tables(following, length, crowd_row, company, joined, gaps, written, join, keep, key_bits, orders, "
             "most_words, least_score, sure, later, later_copy, open_root, open_deeper, fewest, least_share)\n\n"
             "What never changes from call to call, for `grow`: the tables of situations.py, and constants.");

static PyObject *
make_tables(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *following, *length, *crowd_row, *company, *joined;
    Tables *tables = PyMem_Calloc(1, sizeof(Tables));
    if (tables == NULL) {
        return PyErr_NoMemory();
    }
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!iinniindddddddd", &PyList_Type, &following, &PyList_Type, &length,
                          &PyList_Type, &crowd_row, &PyList_Type, &company, &PyList_Type, &joined, &tables->gaps,
                          &tables->written, &tables->join, &tables->keep, &tables->key_bits, &tables->orders,
                          &tables->most_words, &tables->least_score, &tables->sure, &tables->later,
                          &tables->later_copy, &tables->open_root, &tables->open_deeper, &tables->fewest,
                          &tables->least_share)) {
        PyMem_Free(tables);
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(tables, "copyspec.Tables", free_tables); /* frees what follows too */
    if (capsule == NULL) {
        PyMem_Free(tables);
        return NULL;
    }
    tables->states = PyList_GET_SIZE(following);
    tables->companies = (int)PyList_GET_SIZE(company);
    int *companies = NULL, *joins = NULL;
    tables->following = integers(following, (long)tables->states);
    tables->length = tables->following ? integers(length, MATCH_LENGTHS) : NULL;
    tables->crowd_row = tables->length ? integers(crowd_row, INT_MAX) : NULL;
    companies = tables->crowd_row ? integers(company, INT_MAX) : NULL;
    joins = companies ? integers(joined, (long)tables->states) : NULL;
    if (joins != NULL) {
        if (PyList_GET_SIZE(length) == tables->states && PyList_GET_SIZE(crowd_row) == tables->states &&
            PyList_GET_SIZE(joined) == KINDS && tables->gaps > 0 && tables->written >= 0 && tables->written < KINDS &&
            tables->companies > 0 && tables->companies <= 32 && tables->key_bits > 0 && tables->orders > 0 &&
            tables->orders <= 8 && tables->key_bits * tables->orders < 64) {
            memcpy(tables->company, companies, sizeof(int) * (size_t)tables->companies);
            memcpy(tables->joined, joins, sizeof(tables->joined));
            int row = 0, column = 0;
            for (Py_ssize_t i = 0; i < tables->states; i++) {
                row = tables->crowd_row[i] > row ? tables->crowd_row[i] : row;
            }
            for (int i = 0; i < tables->companies; i++) {
                column = companies[i] > column ? companies[i] : column;
            }
            tables->crowds = (Py_ssize_t)row + column + tables->gaps;
        } else {
            PyErr_SetString(PyExc_ValueError, "the tables do not fit each other");
        }
    }
    PyMem_Free(companies);
    PyMem_Free(joins);
    if (PyErr_Occurred()) {
        Py_DECREF(capsule);
        return NULL;
    }
    return capsule;
}

/* Takes the arrays of an NGrams: (contexts, starts, stops, tokens, shares, left). */
static int
take_ngrams(Draft *draft, PyObject *arrays)
{
    PyObject *parts[5];
    if (!PyArg_ParseTuple(arrays, "O!OOOOO", &PyDict_Type, &draft->contexts, &parts[0], &parts[1], &parts[2], &parts[3],
                          &parts[4])) {
        return -1;
    }
    for (; draft->held < 5; draft->held++) {
        Py_buffer *buffer = &draft->buffers[draft->held];
        if (PyObject_GetBuffer(parts[draft->held], buffer, PyBUF_SIMPLE) < 0) {
            return -1;
        }
        if (buffer->itemsize != sizeof(int64_t)) {
            PyBuffer_Release(buffer);
            PyErr_SetString(PyExc_ValueError, "arrays of n-grams hold numbers of 64 bits");
            return -1;
        }
    }
    const Py_buffer *held = draft->buffers; /* starts, stops, tokens, shares, left */
    if (held[1].len != held[0].len || held[4].len != held[0].len || held[3].len != held[2].len) {
        PyErr_SetString(PyExc_ValueError, "arrays of n-grams differ in length");
        return -1;
    }
    draft->starts = draft->buffers[0].buf;
    draft->stops = draft->buffers[1].buf;
    draft->tokens = draft->buffers[2].buf;
    draft->shares = draft->buffers[3].buf;
    draft->left = draft->buffers[4].buf;
    uint64_t key = 0;
    Py_ssize_t orders = draft->tables->orders;
    for (Py_ssize_t at = draft->end > orders ? draft->end - orders : 0; at < draft->end; at++) {
        int64_t token = integer(draft->text, at);
        key = token >= 0 ? key << draft->tables->key_bits | (uint64_t)(token + 1) : 0;
    }
    draft->context = key;
    return 0;
}

/* The cursors of a list of pairs, as the first group. */
static int
take_cursors(Draft *draft, PyObject *list, Group *group)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyList_GET_ITEM(list, i);
        if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2) {
            PyErr_Format(PyExc_TypeError, "a cursor is a position and a situation, got %R", pair);
            return -1;
        }
        long long at = PyLong_AsLongLong(PyTuple_GET_ITEM(pair, 0));
        long state = PyLong_AsLong(PyTuple_GET_ITEM(pair, 1));
        if (at < 0 || state < 0 || state >= draft->tables->states) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_ValueError, "no cursor: %R", pair);
            }
            return -1;
        }
        Cursor cursor = {(Py_ssize_t)at, (int)state};
        if (ADD(draft->cursors, cursor) < 0) {
            return -1;
        }
    }
    group->first = 0;
    group->count = count;
    return 0;
}

static PyObject *
cursor_list(const Draft *draft, Group group)
{
    PyObject *list = PyList_New(group.count);
    for (Py_ssize_t i = 0; list != NULL && i < group.count; i++) {
        Cursor cursor = draft->cursors.items[group.first + i];
        PyObject *pair = PyTuple_New(2), *at = PyLong_FromSsize_t(cursor.at), *state = PyLong_FromLong(cursor.state);
        if (pair == NULL || at == NULL || state == NULL) {
            Py_XDECREF(pair);
            Py_XDECREF(at);
            Py_XDECREF(state);
            Py_DECREF(list);
            return NULL;
        }
        PyTuple_SET_ITEM(pair, 0, at);
        PyTuple_SET_ITEM(pair, 1, state);
        PyList_SET_ITEM(list, i, pair);
    }
    return list;
}

/* (tokens, parents, scores, positions, cursors), a list each. */
static PyObject *
node_lists(const Draft *draft)
{
    PyObject *lists[5] = {NULL};
    int failed = 0;
    for (int i = 0; i < 5; i++) {
        lists[i] = PyList_New(draft->nodes);
        failed |= lists[i] == NULL;
    }
    for (Py_ssize_t node = 0; node < draft->nodes && !failed; node++) {
        PyObject *items[5] = {
            PyLong_FromLongLong(draft->token[node]),   PyLong_FromSsize_t(draft->parent[node]),
            PyFloat_FromDouble(draft->score[node]),    PyLong_FromSsize_t(draft->position[node]),
            cursor_list(draft, draft->group[node]),
        };
        for (int i = 0; i < 5; i++) {
            failed |= items[i] == NULL;
            PyList_SET_ITEM(lists[i], node, items[i]);
        }
    }
    PyObject *all = failed ? NULL : PyTuple_Pack(5, lists[0], lists[1], lists[2], lists[3], lists[4]);
    for (int i = 0; i < 5; i++) {
        Py_XDECREF(lists[i]);
    }
    return all;
}

static int
allocate_nodes(Draft *draft, Py_ssize_t count)
{
    draft->token = PyMem_New(int64_t, count);
    draft->parent = PyMem_New(Py_ssize_t, count);
    draft->position = PyMem_New(Py_ssize_t, count);
    draft->depth = PyMem_New(Py_ssize_t, count);
    draft->score = PyMem_New(double, count);
    draft->group = PyMem_New(Group, count);
    if (!draft->token || !draft->parent || !draft->position || !draft->depth || !draft->score || !draft->group) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static void
free_draft(Draft *draft)
{
    for (int i = 0; i < draft->held; i++) {
        PyBuffer_Release(&draft->buffers[i]);
    }
    PyMem_Free(draft->token);
    PyMem_Free(draft->parent);
    PyMem_Free(draft->position);
    PyMem_Free(draft->depth);
    PyMem_Free(draft->score);
    PyMem_Free(draft->group);
    PyMem_Free(draft->cursors.items);
    PyMem_Free(draft->heap.items);
    PyMem_Free(draft->votes.items);
    PyMem_Free(draft->words.items);
}

PyDoc_STRVAR(grow_doc,
             "grow(tables, text, kinds, output_start, places, written, cursors, at_root, deeper, crowds, none_at_root, "
             "none_deeper, language, common_weights, common, max_nodes, costs, ngrams)\n\n"
             "The fields of growth.Grown. `ngrams`: NGrams.arrays, or None.");

static PyObject *
grow(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *cursors, *common_weights, *common, *costs, *ngrams, *result = NULL, *lists = NULL;
    Py_ssize_t max_nodes;
    Draft draft = {0};
    Roots roots = {NULL, NULL, 0.0};
    Group group;

    if (!PyArg_ParseTuple(args, "OO!O!nO!O!O!O!O!OdddO!O!nOO", &capsule, &PyList_Type, &draft.text, &PyList_Type,
                          &draft.kinds, &draft.output_start, &PyDict_Type, &draft.places, &PyDict_Type, &draft.written,
                          &PyList_Type, &cursors, &PyList_Type, &draft.at_root, &PyList_Type, &draft.deeper,
                          &draft.crowds, &draft.none_at_root, &draft.none_deeper, &draft.language, &PyList_Type,
                          &common_weights, &PyList_Type, &common, &max_nodes, &costs, &ngrams)) {
        return NULL;
    }
    draft.tables = PyCapsule_GetPointer(capsule, "copyspec.Tables");
    if (draft.tables == NULL) {
        return NULL;
    }
    costs = PySequence_Fast(costs, "costs are a sequence");
    if (costs == NULL) {
        return NULL;
    }
    draft.end = PyList_GET_SIZE(draft.text);
    if (max_nodes < 1 || PyList_GET_SIZE(draft.kinds) < draft.output_start ||
        PyList_GET_SIZE(draft.at_root) != draft.tables->states ||
        PyList_GET_SIZE(draft.deeper) != draft.tables->states ||
        !(PyList_Check(draft.crowds) || PyTuple_Check(draft.crowds)) ||
        PySequence_Fast_GET_SIZE(draft.crowds) < draft.tables->crowds) {
        PyErr_SetString(PyExc_ValueError, "the arguments of grow() do not fit each other");
        goto done;
    }
    if (ngrams != Py_None && take_ngrams(&draft, ngrams) < 0) {
        goto done;
    }
    roots.offered = PySet_New(NULL);
    if (roots.offered == NULL || allocate_nodes(&draft, max_nodes) < 0 ||
        take_cursors(&draft, cursors, &group) < 0 ||
        draft_push_roots(&draft, group, common_weights, common, &roots) < 0 ||
        draft_grow(&draft, max_nodes, costs) < 0 || PyErr_Occurred()) {
        goto done;
    }
    lists = node_lists(&draft);
    if (lists != NULL) {
        result = Py_BuildValue("(OOOOOOdKO)", PyTuple_GET_ITEM(lists, 0), PyTuple_GET_ITEM(lists, 1),
                               PyTuple_GET_ITEM(lists, 2), PyTuple_GET_ITEM(lists, 3), PyTuple_GET_ITEM(lists, 4),
                               roots.offered, roots.covered, (unsigned long long)draft.context, roots.words);
    }
done:
    Py_DECREF(costs);
    Py_XDECREF(lists);
    Py_XDECREF(roots.offered);
    Py_XDECREF(roots.words);
    free_draft(&draft);
    return result;
}

static PyMethodDef methods[] = {
    {"make_tables", make_tables, METH_VARARGS, make_tables_doc},
    {"grow", grow, METH_VARARGS, grow_doc},
    {NULL, NULL, 0, NULL},
};

static int
fill_module(PyObject *module)
{
    return PyModule_AddIntMacro(module, VERSION);
}

/* No Py_mod_gil: builds without the lock take it again, which borrowed references need. */
static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill_module},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_growth", "growth.grow, compiled.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__growth(void)
{
    return PyModuleDef_Init(&definition);
}

/* The module `_growth`: arguments from Python, lists back. See draft.h. */

#include "draft.h"

#define VERSION 15 /* of the arguments and results; must equal VERSION in native_module.py */

/* Takes one array of 64-bit numbers, of one of two formats. */
static int
take_array(Draft *draft, const char *name, PyObject *array, const char *formats)
{
    Py_buffer *buffer = &draft->buffers[draft->held];
    if (PyObject_GetBuffer(array, buffer, PyBUF_ND | PyBUF_FORMAT) < 0) {
        return -1;
    }
    draft->held++; /* to be released */
    const char *format = buffer->format != NULL ? buffer->format : "B";
    if (strlen(format) != 1 || strchr(formats, *format) == NULL || buffer->itemsize != sizeof(int64_t)) {
        PyErr_Format(PyExc_ValueError, "%s of the n-grams are of format '%s'; arrays of format '%c' are read", name,
                     format, *formats);
        return -1;
    }
    if ((uintptr_t)buffer->buf % sizeof(int64_t) != 0 && buffer->len > 0) {
        PyErr_Format(PyExc_ValueError, "%s of the n-grams start between two numbers", name);
        return -1;
    }
    return 0;
}

int
draft_take_ngrams(Draft *draft, PyObject *arrays)
{
    static const char *const names[] = {"starts", "stops", "tokens", "shares", "left"};
    if (!PyTuple_Check(arrays) || PyTuple_GET_SIZE(arrays) != 6 || !PyDict_Check(PyTuple_GET_ITEM(arrays, 0))) {
        PyErr_Format(PyExc_TypeError, "n-grams are a tuple of a dict and five arrays, got %.200s",
                     Py_TYPE(arrays)->tp_name);
        return -1;
    }
    draft->contexts = PyTuple_GET_ITEM(arrays, 0);
    for (int i = 0; i < 5; i++) {
        if (take_array(draft, names[i], PyTuple_GET_ITEM(arrays, i + 1), i < 3 ? "ql" : "dd") < 0) {
            return -1;
        }
    }
    const Py_buffer *held = draft->buffers;
    if (held[1].len != held[0].len || held[4].len != held[0].len || held[3].len != held[2].len) {
        PyErr_SetString(PyExc_ValueError, "arrays of n-grams differ in length");
        return -1;
    }
    draft->starts = held[0].buf;
    draft->stops = held[1].buf;
    draft->tokens = held[2].buf;
    draft->shares = held[3].buf;
    draft->left = held[4].buf;
    draft->places_of = held[0].len / (Py_ssize_t)sizeof(int64_t);
    draft->words_of = held[2].len / (Py_ssize_t)sizeof(int64_t);
    Py_ssize_t orders = draft->tables->orders;
    for (Py_ssize_t at = draft->end > orders ? draft->end - orders : 0; at < draft->end; at++) {
        int64_t token;
        if (get_integer(draft->text, at, &token) < 0) {
            return -1;
        }
        draft->context = draft_longer_key(draft->tables, draft->context, token);
    }
    return 0;
}

/* Adds the cursor that `pair` is. */
static int
take_cursor(Draft *draft, PyObject *pair)
{
    int64_t at, state;
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
        PyErr_Format(PyExc_TypeError, "a cursor is a position and a situation, got %R", pair);
        return -1;
    }
    if (draft_integer(PyTuple_GET_ITEM(pair, 0), &at) < 0 || draft_integer(PyTuple_GET_ITEM(pair, 1), &state) < 0) {
        return -1;
    }
    if (at < 0 || at >= draft->end || state < 0 || state >= draft->tables->states) {
        PyErr_Format(PyExc_ValueError, "invalid cursor %R; there are %zd positions and %zd situations", pair,
                     draft->end, draft->tables->states);
        return -1;
    }
    Cursor cursor = {(Py_ssize_t)at, (int)state};
    return ADD(draft->cursors, cursor);
}

/* The cursors of a list of pairs, as the first group. */
static int
take_cursors(Draft *draft, PyObject *list, Group *group)
{
    group->first = 0;
    group->count = PyList_GET_SIZE(list);
    for (Py_ssize_t i = 0; i < group->count; i++) {
        PyObject *pair = draft_item(list, i);
        int failed = pair == NULL || take_cursor(draft, pair) < 0;
        Py_XDECREF(pair);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

/* (tokens, parents, scores, positions, drafters), a list each; the last is empty without predictors. */
static PyObject *
node_lists(const Draft *draft)
{
    PyObject *lists[5] = {NULL}, *all = NULL;
    const int filled = PyTuple_GET_SIZE(draft->predictors) > 0 ? 5 : 4;
    int failed = 0;
    for (int i = 0; i < 5; i++) {
        lists[i] = open_list(i < filled ? draft->nodes.count : 0);
        failed |= lists[i] == NULL;
    }
    for (Py_ssize_t i = 0; i < draft->nodes.count && !failed; i++) {
        const Node *node = &draft->nodes.items[i];
        PyObject *items[5] = {
            PyLong_FromLongLong(node->token),   PyLong_FromSsize_t(node->parent),
            PyFloat_FromDouble(node->score),    PyLong_FromSsize_t(node->position),
            filled == 5 ? PyLong_FromSsize_t(node->drafter) : NULL,
        };
        for (int j = 0; j < filled; j++) {
            failed |= items[j] == NULL;
            PyList_SET_ITEM(lists[j], i, items[j]);
        }
    }
    if (!failed) {
        for (int i = 0; i < 5; i++) {
            close_list(lists[i]);
        }
        all = PyTuple_Pack(5, lists[0], lists[1], lists[2], lists[3], lists[4]);
    }
    for (int i = 0; i < 5; i++) {
        Py_XDECREF(lists[i]);
    }
    return all;
}

void
draft_free(Draft *draft)
{
    for (int i = 0; i < draft->held; i++) {
        PyBuffer_Release(&draft->buffers[i]);
    }
    PyMem_Free(draft->nodes.items);
    PyMem_Free(draft->cursors.items);
    PyMem_Free(draft->heap.items);
    PyMem_Free(draft->votes.items);
    PyMem_Free(draft->words.items);
}

PyDoc_STRVAR(grow_doc,
             "grow(tables, text, kinds, places, written, cursors, at_root, deeper, crowds, substitutes, "
             "repeated, miss_at_root, miss_deeper, ngram_scale, common_weights, common, max_nodes, costs, "
             "ngrams, predictors)\n\n"
             "The fields of growth.Grown. `ngrams`: NGrams.arrays, or None. `predictors`: a tuple of "
             "growth.PredictorCalls.");

/* Whether the numbers and lists fit each other; messages are those of growth.py where it checks the same. */
static int
check_arguments(const Draft *draft, Py_ssize_t max_nodes)
{
    const double miss_weights[] = {draft->miss_at_root, draft->miss_deeper};
    for (int i = 0; i < 2; i++) {
        if (!(miss_weights[i] > 0.0 && miss_weights[i] < INFINITY)) {
            return draft_wrong_number("miss weight must be > 0, got %R", miss_weights[i]);
        }
    }
    if (!(draft->ngram_scale >= 0.0 && draft->ngram_scale < INFINITY)) {
        return draft_wrong_number("ngram_scale must be >= 0, got %R", draft->ngram_scale);
    }
    if (max_nodes < 1) {
        PyErr_Format(PyExc_ValueError, "max_nodes is %zd; a tree has at least 1", max_nodes);
        return -1;
    }
    Py_ssize_t states = draft->tables->states;
    if (PyList_GET_SIZE(draft->at_root) != states || PyList_GET_SIZE(draft->deeper) != states) {
        PyErr_Format(PyExc_ValueError, "%zd weights at the root and %zd deeper; there are %zd situations",
                     PyList_GET_SIZE(draft->at_root), PyList_GET_SIZE(draft->deeper), states);
        return -1;
    }
    if (!PyList_Check(draft->crowds) && !PyTuple_Check(draft->crowds)) {
        PyErr_Format(PyExc_TypeError, "crowds are a list or a tuple, got %.200s", Py_TYPE(draft->crowds)->tp_name);
        return -1;
    }
    if ((!PyList_Check(draft->repeated) && !PyTuple_Check(draft->repeated)) ||
        PySequence_Fast_GET_SIZE(draft->repeated) < draft->tables->columns) {
        PyErr_Format(PyExc_TypeError, "the factors of substitutes are a list or a tuple of %d, got %R",
                     draft->tables->columns, draft->repeated);
        return -1;
    }
    if (PySequence_Fast_GET_SIZE(draft->crowds) < draft->tables->crowds) {
        PyErr_Format(PyExc_ValueError, "%zd crowds; the tables need %d", PySequence_Fast_GET_SIZE(draft->crowds),
                     draft->tables->crowds);
        return -1;
    }
    return 0;
}

static PyObject *
grow(PyObject *module, PyObject *args)
{
    PyObject *capsule, *cursors, *common_weights, *common, *costs, *ngrams, *predictors;
    PyObject *result = NULL, *lists = NULL, *groups = NULL;
    Py_ssize_t max_nodes;
    double least;
    Draft draft = {0};
    Roots roots = {NULL, NULL, 0.0};
    Group group;

    if (!PyArg_ParseTuple(args, "OO!O!O!O!O!O!O!OO!OdddO!O!nOOO!", &capsule, &PyList_Type, &draft.text, &PyList_Type,
                          &draft.kinds, &PyDict_Type, &draft.places, &PyDict_Type, &draft.written, &PyList_Type,
                          &cursors, &PyList_Type, &draft.at_root, &PyList_Type, &draft.deeper, &draft.crowds,
                          &PyDict_Type, &draft.substitutes, &draft.repeated,
                          &draft.miss_at_root, &draft.miss_deeper, &draft.ngram_scale, &PyList_Type, &common_weights,
                          &PyList_Type, &common, &max_nodes, &costs, &ngrams, &PyTuple_Type, &predictors)) {
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
    if (check_arguments(&draft, max_nodes) < 0 || (ngrams != Py_None && draft_take_ngrams(&draft, ngrams) < 0) ||
        draft_take_predictors(&draft, predictors) < 0) {
        goto done;
    }
    roots.offered = PySet_New(NULL);
    if (roots.offered == NULL || take_cursors(&draft, cursors, &group) < 0 ||
        draft_push_roots(&draft, group, common_weights, common, &roots) < 0 ||
        draft_grow(&draft, max_nodes, costs, &least) < 0) {
        goto done;
    }
    lists = node_lists(&draft);
    groups = lists == NULL ? NULL : draft_take_groups(&draft, ((State *)PyModule_GetState(module))->groups);
    if (groups != NULL) {
        result = Py_BuildValue("(OOOOOOdKOdOO)", PyTuple_GET_ITEM(lists, 0), PyTuple_GET_ITEM(lists, 1),
                               PyTuple_GET_ITEM(lists, 2), PyTuple_GET_ITEM(lists, 3), groups, roots.offered,
                               roots.hit_prob, (unsigned long long)draft.context, roots.words, least,
                               PyTuple_GET_ITEM(lists, 4), draft.mixes);
    }
done:
    Py_DECREF(costs);
    Py_XDECREF(lists);
    Py_XDECREF(groups);
    Py_XDECREF(roots.offered);
    Py_XDECREF(roots.words);
    Py_XDECREF(draft.mixes);
    draft_free(&draft);
    return result;
}

PyDoc_STRVAR(make_tables_doc,
             "make_tables(following, length, crowd_row, company, after_substitute, joined, gaps, written, max_joining, "
             "max_cursors, key_bits, orders, max_continuations, min_score, sure_weight, child_priority, copy_priority, "
             "ngram_min_miss_prob_root, ngram_min_miss_prob, min_ngram_score, min_share, columns, predicted_priority, "
             "table_min_miss_prob, miss_prob_floor)\n\n"
             "What never changes from call to call, for `grow`: the tables of situations.py, and constants.");

PyDoc_STRVAR(index_doc,
             "index(text, places, start, stop)\n\n"
             "Adds the positions after the tokens text[start:stop] to `places`, by token: CopyCorpus.prepare.");

PyDoc_STRVAR(arrange_doc,
             "arrange(tokens, parents, scores, positions, count, starts, sources, lengths, output_start, end, Origin)\n\n"
             "The fields of a DraftTree of the first `count` nodes: CopyCorpus.arranged.");

PyDoc_STRVAR(align_doc,
             "align(band, move_every, soon, near, source, free=0)\n\n"
             "An `alignment.Alignment`, with the constants of that module.");

PyDoc_STRVAR(best_chain_doc,
             "best_chain(tables, text, deeper, miss_deeper, tokens, parents, scores, positions, cursors, length)\n\n"
             "chains.best_chain, of the lists of a growth.Grown.");

PyDoc_STRVAR(make_odds_doc,
             "make_odds(weights, expected, shifts, one, stride)\n\n"
             "What never changes from call to call, for `columns`: constants of resumptions.py.");

PyDoc_STRVAR(columns_doc,
             "columns(tables, odds, text, anchor, since, shifts, small_words, word_pieces, ngrams)\n\n"
             "resumptions.columns, as a list. `ngrams`: NGrams.arrays.");

PyDoc_STRVAR(extend_doc,
             "extend(text, written, counts, common, tokens, own_count, most)\n\n"
             "CopyCorpus.extend.");

PyDoc_STRVAR(make_rates_doc,
             "make_rates(decay, prior_count, prior_count_wrong, max_factor, stride, short, seen, kept)\n\n"
             "What never changes from call to call, for `walk`.");

PyDoc_STRVAR(walk_doc,
             "walk(rates, tokens, drafted, parents, scores, positions, cursors, text, output_start, substitutes, "
             "records, priors, at_root, deeper)\n\n"
             "learning.learn, of the lists of a growth.Grown and of the fields of Estimates.");

static PyMethodDef methods[] = {
    {"align", draft_align, METH_VARARGS, align_doc},
    {"best_chain", draft_best_chain, METH_VARARGS, best_chain_doc},
    {"columns", draft_columns, METH_VARARGS, columns_doc},
    {"extend", draft_extend, METH_VARARGS, extend_doc},
    {"make_odds", draft_make_odds, METH_VARARGS, make_odds_doc},
    {"make_rates", draft_make_rates, METH_VARARGS, make_rates_doc},
    {"walk", draft_walk, METH_VARARGS, walk_doc},
    {"arrange", draft_arrange, METH_VARARGS, arrange_doc},
    {"index", draft_index, METH_VARARGS, index_doc},
    {"make_tables", draft_make_tables, METH_VARARGS, make_tables_doc},
    {"grow", grow, METH_VARARGS, grow_doc},
    {NULL, NULL, 0, NULL},
};

static int
fill_module(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->alignment = (PyTypeObject *)PyType_FromSpec(&draft_alignment);
    state->groups = (PyTypeObject *)PyType_FromSpec(&draft_groups);
    return state->alignment == NULL || state->groups == NULL ? -1 : PyModule_AddIntMacro(module, VERSION);
}

static int
visit_module(PyObject *module, visitproc visit, void *arg)
{
    Py_VISIT(((State *)PyModule_GetState(module))->alignment);
    Py_VISIT(((State *)PyModule_GetState(module))->groups);
    return 0;
}

static int
clear_module(PyObject *module)
{
    Py_CLEAR(((State *)PyModule_GetState(module))->alignment);
    Py_CLEAR(((State *)PyModule_GetState(module))->groups);
    return 0;
}

static void
free_module(void *module)
{
    clear_module(module);
}

/* No Py_mod_gil: builds without the lock take it again, which borrowed references need. */
static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill_module},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_growth", "growth.grow, compiled.", sizeof(State), methods, slots,
    visit_module, clear_module, free_module,
};

PyMODINIT_FUNC
PyInit__growth(void)
{
    return PyModuleDef_Init(&definition);
}

/* The best chain of a tree: `chains.best_chain` in C. See draft.h. */

#include "draft.h"

typedef struct {
    const Tables *tables;
    PyObject *text, *deeper, *tokens, *parents, *scores, *positions, *cursors; /* lists of the caller's */
    PyTypeObject *groups; /* which the cursors may be, too */
    double miss_weight;
    ARRAY(Py_ssize_t) path; /* from the root */
} Chain;

/* Whether `cursor` has the token that may come next, with a larger weight than the heaviest one before. */
static int
weigh(const Chain *chain, int64_t at, int64_t state, int64_t *token, double *heaviest)
{
    double weight;
    if (at < 0 || at >= PyList_GET_SIZE(chain->text)) {
        return 0;
    }
    if (get_integer(chain->text, (Py_ssize_t)at, token) < 0) {
        return -1;
    }
    if (*token < 0) {
        return 0;
    }
    if (state < 0 || state >= chain->tables->states || get_number(chain->deeper, (Py_ssize_t)state, &weight) < 0) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_IndexError, "situation %lld of %zd", (long long)state, chain->tables->states);
        }
        return -1;
    }
    if (!(weight > *heaviest)) {
        return 0;
    }
    *heaviest = weight;
    return 1;
}

/* The heaviest of the cursors in a node's list, at both ways of a fork, and its token: 1, or 0 where there is none. */
static int
find_heaviest(const Chain *chain, PyObject *cursors, int64_t *position, int64_t *state, int64_t *token, double *weight)
{
    int found = 0;
    *weight = -INFINITY;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(cursors); i++) {
        PyObject *pair = draft_item(cursors, i);
        int64_t at = -1, situation = -1, next = 0;
        int failed = !PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2;
        if (failed) {
            PyErr_Format(PyExc_TypeError, "a cursor is a position and a situation, got %R", pair);
        }
        failed = failed || draft_integer(PyTuple_GET_ITEM(pair, 0), &at) < 0 ||
                 draft_integer(PyTuple_GET_ITEM(pair, 1), &situation) < 0;
        Py_DECREF(pair);
        const Py_ssize_t end = PyList_GET_SIZE(chain->text);
        if (failed || (at >= 0 && at < end && get_integer(chain->text, (Py_ssize_t)at, &next) < 0)) {
            return -1;
        }
        int64_t ways[2] = {at, -1};
        if (next < FORK) {
            if (next <= -end || at + 1 >= end) {
                PyErr_Format(PyExc_ValueError, "the fork at %lld leads to %lld; the text has %zd positions",
                             (long long)at, (long long)next, end);
                return -1;
            }
            ways[0] = at + 1;
            ways[1] = -next;
        }
        for (int way = 0; way < 2; way++) {
            int heavier = weigh(chain, ways[way], situation, &next, weight);
            if (heavier < 0) {
                return -1;
            }
            if (heavier) {
                found = 1;
                *position = ways[way];
                *state = situation;
                *token = next;
            }
        }
    }
    return found;
}

static int
append(PyObject *list, PyObject *item)
{
    int result = item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    return result;
}

/* `chains._lengthen`: 1 where a node was appended after `node`, 0 where nothing comes after it. */
static int
lengthen(const Chain *chain, Py_ssize_t node)
{
    int64_t position = 0, state = 0, token = 0;
    double weight = 0.0, score;
    PyObject *cursors = draft_cursors_of(chain->cursors, node, chain->groups);
    const int found = cursors == NULL ? -1 : find_heaviest(chain, cursors, &position, &state, &token, &weight);
    Py_XDECREF(cursors);
    if (found <= 0 || get_number(chain->scores, node, &score) < 0) {
        return found <= 0 ? found : -1;
    }
    score *= weight / (weight + chain->miss_weight);
    const long long next = (long long)position + 1, following = chain->tables->following[state];
    if (append(chain->tokens, PyLong_FromLongLong(token)) < 0 ||
        append(chain->parents, PyLong_FromSsize_t(node)) < 0 ||
        append(chain->scores, PyFloat_FromDouble(score)) < 0 ||
        append(chain->positions, PyLong_FromLongLong(position)) < 0) {
        return -1;
    }
    PyObject *group = Py_BuildValue("[(LL)]", next, following);
    const int failed = group == NULL || draft_add_cursors(chain->cursors, group, chain->groups) < 0;
    Py_XDECREF(group);
    return failed ? -1 : 1;
}

/* The node whose path is expected to bring most tokens; ROOT with an exception. */
static Py_ssize_t
best_node(const Chain *chain, Py_ssize_t count)
{
    double *expected = PyMem_New(double, count), best = -INFINITY;
    Py_ssize_t found = ROOT;
    if (expected == NULL) {
        PyErr_NoMemory();
        return ROOT;
    }
    for (Py_ssize_t node = 0; node < count; node++) {
        int64_t parent;
        double score;
        if (get_integer(chain->parents, node, &parent) < 0 || get_number(chain->scores, node, &score) < 0) {
            found = ROOT;
            break;
        }
        if (parent < ROOT || parent >= node) {
            PyErr_Format(PyExc_ValueError, "node %zd has the parent %lld; parents come first", node, (long long)parent);
            found = ROOT;
            break;
        }
        expected[node] = score + (parent == ROOT ? 0.0 : expected[parent]);
        if (expected[node] > best || found == ROOT) {
            best = expected[node];
            found = node;
        }
    }
    PyMem_Free(expected);
    return found;
}

/* Makes the path from the root to `node`. */
static int
make_path(Chain *chain, Py_ssize_t node)
{
    while (node != ROOT) {
        int64_t parent;
        if (ADD(chain->path, node) < 0 || get_integer(chain->parents, node, &parent) < 0) {
            return -1;
        }
        if (parent < ROOT || parent >= node) { /* a number's own code may have changed it */
            PyErr_Format(PyExc_ValueError, "node %zd has the parent %lld; parents come first", node, (long long)parent);
            return -1;
        }
        node = (Py_ssize_t)parent;
    }
    for (Py_ssize_t i = 0, j = chain->path.count - 1; i < j; i++, j--) {
        Py_ssize_t first = chain->path.items[i];
        chain->path.items[i] = chain->path.items[j];
        chain->path.items[j] = first;
    }
    return 0;
}

/* Lengthens the path to `length` nodes, as far as there are any. */
static int
lengthen_path(Chain *chain, Py_ssize_t length)
{
    while (chain->path.count < length) {
        int more = lengthen(chain, chain->path.items[chain->path.count - 1]);
        if (more <= 0) {
            return more;
        }
        if (ADD(chain->path, PyList_GET_SIZE(chain->tokens) - 1) < 0) {
            return -1;
        }
    }
    return 0;
}

/* (tokens, scores, positions) of the path's first `count` nodes, a list each. */
static PyObject *
path_lists(const Chain *chain, Py_ssize_t count)
{
    PyObject *const from[3] = {chain->tokens, chain->scores, chain->positions}, *lists[3] = {NULL}, *all = NULL;
    int failed = 0;
    for (int i = 0; i < 3; i++) {
        lists[i] = open_list(count);
        failed |= lists[i] == NULL;
    }
    for (Py_ssize_t i = 0; i < count && !failed; i++) {
        for (int j = 0; j < 3; j++) {
            PyObject *item = draft_item(from[j], chain->path.items[i]);
            failed |= item == NULL;
            PyList_SET_ITEM(lists[j], i, item);
        }
    }
    if (!failed) {
        for (int i = 0; i < 3; i++) {
            close_list(lists[i]);
        }
        all = PyTuple_Pack(3, lists[0], lists[1], lists[2]);
    }
    for (int i = 0; i < 3; i++) {
        Py_XDECREF(lists[i]);
    }
    return all;
}

PyObject *
draft_best_chain(PyObject *module, PyObject *args)
{
    PyObject *capsule, *result = NULL;
    Chain chain = {0};
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "OO!O!dO!O!O!O!On", &capsule, &PyList_Type, &chain.text, &PyList_Type, &chain.deeper,
                          &chain.miss_weight, &PyList_Type, &chain.tokens, &PyList_Type, &chain.parents, &PyList_Type,
                          &chain.scores, &PyList_Type, &chain.positions, &chain.cursors, &length)) {
        return NULL;
    }
    chain.groups = ((State *)PyModule_GetState(module))->groups;
    chain.tables = PyCapsule_GetPointer(capsule, "copyspec.Tables");
    if (chain.tables == NULL) {
        return NULL;
    }
    if (length < 0) {
        PyErr_Format(PyExc_ValueError, "a chain of %zd tokens", length);
        return NULL;
    }
    const Py_ssize_t count = PyList_GET_SIZE(chain.tokens), last = count == 0 ? ROOT : best_node(&chain, count);
    if (count == 0 || (last != ROOT && make_path(&chain, last) == 0 && lengthen_path(&chain, length) == 0)) {
        result = path_lists(&chain, chain.path.count < length ? chain.path.count : length);
    }
    PyMem_Free(chain.path.items);
    return result;
}

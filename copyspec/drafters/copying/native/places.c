/* The index of a text by token. See draft.h. */

#include "draft.h"

/* Appends `position` to the list that `places` has for `token`, or to a new one. A new one is not
 * tracked by the garbage collector: it holds integers only, and the lists of a long text would take it milliseconds. */
static int
add_position(PyObject *places, PyObject *token, Py_ssize_t position)
{
    PyObject *list = Py_XNewRef(PyDict_GetItemWithError(places, token)), *number = NULL;
    int result = -1;
    if (list == NULL) {
        list = PyErr_Occurred() ? NULL : PyList_New(0);
        if (list == NULL || PyDict_SetItem(places, token, list) < 0) {
            goto done;
        }
        PyObject_GC_UnTrack(list);
    }
    if (!PyList_Check(list)) {
        PyErr_Format(PyExc_TypeError, "the places of token %R are a list, got %R", token, list);
        goto done;
    }
    number = PyLong_FromSsize_t(position);
    result = number == NULL ? -1 : PyList_Append(list, number);
done:
    Py_XDECREF(number);
    Py_XDECREF(list);
    return result;
}

PyObject *
draft_index(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *text, *places;
    Py_ssize_t start, stop;
    if (!PyArg_ParseTuple(args, "O!O!nn", &PyList_Type, &text, &PyDict_Type, &places, &start, &stop)) {
        return NULL;
    }
    for (Py_ssize_t at = start; at < stop; at++) {
        PyObject *token = draft_item(text, at); /* held: a token may be of any class, and compare as it likes */
        int64_t number;
        int failed = token == NULL || draft_integer(token, &number) < 0 ||
                     (number >= 0 && add_position(places, token, at + 1) < 0);
        Py_XDECREF(token);
        if (failed) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

/* How often `token` was counted; -1 with an exception. */
static int64_t
count_of(PyObject *counts, PyObject *token)
{
    PyObject *found = Py_XNewRef(PyDict_GetItemWithError(counts, token));
    int64_t count = 0;
    if (found == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    if (draft_integer(found, &count) < 0 || count < 0) {
        count = -1;
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "token %R was counted %R times", token, found);
        }
    }
    Py_DECREF(found);
    return count;
}

/* Whether the token at `rank` of `common` is as frequent as `count`, or (`strictly`) more rarely so: 1 or 0, -1 with an
 * exception. */
static int
is_below(PyObject *counts, PyObject *common, Py_ssize_t rank, int64_t count, int strictly)
{
    PyObject *other = draft_item(common, rank);
    const int64_t counted = other == NULL ? -1 : count_of(counts, other);
    Py_XDECREF(other);
    return counted < 0 ? -1 : strictly ? counted < count : counted <= count;
}

/* `CopyCorpus._rank`: `token`, which is `number`, moves up among the common ones, now of frequency `count`. */
static int
rank_token(PyObject *counts, PyObject *common, PyObject *token, int64_t number, int64_t count, Py_ssize_t most)
{
    Py_ssize_t rank = 0;
    for (; rank < PyList_GET_SIZE(common); rank++) {
        int64_t other;
        if (get_integer(common, rank, &other) < 0) {
            return -1;
        }
        if (other == number) {
            break;
        }
    }
    if (rank == PyList_GET_SIZE(common)) {
        if (rank < most) {
            if (PyList_Append(common, token) < 0) {
                return -1;
            }
        } else {
            int below = is_below(counts, common, --rank, count, 1);
            if (below <= 0) {
                return below;
            }
            if (PyList_SetItem(common, rank, Py_NewRef(token)) < 0) {
                return -1;
            }
        }
    }
    for (; rank > 0; rank--) {
        int below = is_below(counts, common, rank - 1, count, 1);
        if (below <= 0) {
            return below;
        }
        PyObject *other = draft_item(common, rank - 1);
        if (other == NULL || PyList_SetItem(common, rank, other) < 0 ||
            PyList_SetItem(common, rank - 1, Py_NewRef(token)) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Appends one token of the output. */
static int
append_token(PyObject *text, PyObject *written, PyObject *counts, PyObject *common, PyObject *token, int64_t number,
             Py_ssize_t own_count, Py_ssize_t most)
{
    if (PyList_Append(text, token) < 0 || add_position(written, token, PyList_GET_SIZE(text)) < 0) {
        return -1;
    }
    int64_t count = count_of(counts, token);
    if (count < 0 || count > INT64_MAX - own_count) {
        return count < 0 ? -1 : draft_wrong_number("a token was counted %R times", (double)count);
    }
    count += own_count;
    PyObject *object = PyLong_FromLongLong(count);
    int failed = object == NULL || PyDict_SetItem(counts, token, object) < 0;
    Py_XDECREF(object);
    if (failed) {
        return -1;
    }
    const Py_ssize_t ranks = PyList_GET_SIZE(common);
    int ranked = ranks < most ? 1 : is_below(counts, common, ranks - 1, count, 0);
    return ranked > 0 ? rank_token(counts, common, token, number, count, most) : ranked;
}

PyObject *
draft_extend(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *text, *written, *counts, *common, *given;
    Py_ssize_t own_count, most;
    if (!PyArg_ParseTuple(args, "O!O!O!O!Onn", &PyList_Type, &text, &PyDict_Type, &written, &PyDict_Type, &counts,
                          &PyList_Type, &common, &given, &own_count, &most)) {
        return NULL;
    }
    if (own_count < 1 || most < 1) {
        PyErr_Format(PyExc_ValueError, "own_count %zd and most %zd are counts from 1", own_count, most);
        return NULL;
    }
    PyObject *tokens = PySequence_Fast(given, "tokens are a sequence");
    for (Py_ssize_t i = 0; tokens != NULL && i < PySequence_Fast_GET_SIZE(tokens); i++) {
        PyObject *item = draft_item(tokens, i);
        int64_t number;
        int failed = draft_integer(item, &number) < 0;
        PyObject *token = failed ? NULL : PyLong_CheckExact(item) ? Py_NewRef(item) : PyLong_FromLongLong(number);
        if (token == NULL || append_token(text, written, counts, common, token, number, own_count, most) < 0) {
            Py_CLEAR(tokens);
        }
        Py_DECREF(item);
        Py_XDECREF(token);
    }
    if (tokens == NULL) {
        return NULL;
    }
    Py_DECREF(tokens);
    Py_RETURN_NONE;
}

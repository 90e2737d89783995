/* The index of a text by token. See draft.h. */

#include "draft.h"

/* Appends `position` to the list that `places` has for `token`, or to a new one. */
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

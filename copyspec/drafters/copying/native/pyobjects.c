/* Reading Python objects of any class. See draft.h. */

#include "draft.h"

PyObject *
draft_item(PyObject *sequence, Py_ssize_t index)
{
    if (index < 0 || index >= PySequence_Fast_GET_SIZE(sequence)) {
        PyErr_Format(PyExc_IndexError, "no item %zd: the %s holds %zd", index, Py_TYPE(sequence)->tp_name,
                     PySequence_Fast_GET_SIZE(sequence));
        return NULL;
    }
    return Py_NewRef(PySequence_Fast_GET_ITEM(sequence, index));
}

int
draft_integer(PyObject *item, int64_t *integer)
{
    *integer = PyLong_AsLongLong(item);
    return *integer == -1 && PyErr_Occurred() ? -1 : 0;
}

int
draft_any_integer(PyObject *list, Py_ssize_t index, int64_t *integer)
{
    PyObject *item = draft_item(list, index);
    int result = item == NULL ? -1 : draft_integer(item, integer);
    Py_XDECREF(item);
    return result;
}

int
draft_any_number(PyObject *sequence, Py_ssize_t index, double *number)
{
    PyObject *item = draft_item(sequence, index);
    *number = item == NULL ? -1.0 : PyFloat_AsDouble(item);
    Py_XDECREF(item);
    return *number == -1.0 && PyErr_Occurred() ? -1 : 0;
}

int
draft_wrong_number(const char *format, double number)
{
    PyObject *object = PyFloat_FromDouble(number);
    if (object != NULL) {
        PyErr_Format(PyExc_ValueError, format, object);
        Py_DECREF(object);
    }
    return -1;
}

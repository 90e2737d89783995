/* The cursors of a tree's nodes, which become lists only when they are read: most nodes never are. See draft.h. */

#include "draft.h"

typedef struct {
    PyObject_HEAD
    Cursor *cursors;
    Group *groups; /* by node, of `cursors`. [count] */
    Py_ssize_t count;
    PyObject *added; /* a list of lists: those of nodes that were appended */
} Groups;

static PyObject *
list_group(const Cursor *cursors, Py_ssize_t count)
{
    PyObject *list = open_list(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *pair = PyTuple_New(2), *at = PyLong_FromSsize_t(cursors[i].at);
        PyObject *state = PyLong_FromLong(cursors[i].state);
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
    if (list != NULL) {
        close_list(list);
    }
    return list;
}

static Py_ssize_t
length(PyObject *object)
{
    const Groups *self = (const Groups *)object;
    return self->count + PyList_GET_SIZE(self->added);
}

static PyObject *
item(PyObject *object, Py_ssize_t node)
{
    const Groups *self = (const Groups *)object;
    if (node < 0 || node >= self->count) {
        return draft_item(self->added, node < 0 ? -1 : node - self->count);
    }
    return list_group(self->cursors + self->groups[node].first, self->groups[node].count);
}

static PyObject *
append(PyObject *object, PyObject *cursors)
{
    if (PyList_Append(((Groups *)object)->added, cursors) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
compare(PyObject *object, PyObject *other, int operator)
{
    if (!PyList_Check(other) && Py_TYPE(other) != Py_TYPE(object)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    PyObject *lists[2] = {PySequence_List(object), PySequence_List(other)}, *result = NULL;
    if (lists[0] != NULL && lists[1] != NULL) {
        result = PyObject_RichCompare(lists[0], lists[1], operator);
    }
    Py_XDECREF(lists[0]);
    Py_XDECREF(lists[1]);
    return result;
}

static int
traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((Groups *)object)->added);
    return 0;
}

static void
dealloc(PyObject *object)
{
    Groups *self = (Groups *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    PyMem_Free(self->cursors);
    PyMem_Free(self->groups);
    Py_XDECREF(self->added);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"append", append, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, dealloc},         {Py_tp_traverse, traverse}, {Py_tp_methods, methods},
    {Py_tp_richcompare, compare},     {Py_sq_length, length},     {Py_sq_item, item},
    {Py_tp_hash, PyObject_HashNotImplemented},
    {0, NULL},
};

PyType_Spec draft_groups = {
    "copyspec.drafters.copying._growth.Groups", sizeof(Groups), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots,
};

PyObject *
draft_take_groups(Draft *draft, PyTypeObject *type)
{
    const Py_ssize_t count = draft->nodes.count;
    Groups *self = PyObject_GC_New(Groups, type);
    if (self == NULL) {
        return NULL;
    }
    self->cursors = NULL;
    self->count = 0;
    self->groups = PyMem_New(Group, count + 1);
    self->added = PyList_New(0);
    PyObject_GC_Track((PyObject *)self);
    if (self->groups == NULL || self->added == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t node = 0; node < count; node++) {
        self->groups[node] = draft->nodes.items[node].group;
    }
    self->count = count;
    self->cursors = draft->cursors.items; /* which the draft has no more */
    memset(&draft->cursors, 0, sizeof(draft->cursors));
    return (PyObject *)self;
}

PyObject *
draft_cursors_of(PyObject *all, Py_ssize_t node, PyTypeObject *groups)
{
    PyObject *cursors = NULL;
    if (Py_TYPE(all) == groups) {
        if (node < 0 || node >= length(all)) {
            PyErr_Format(PyExc_IndexError, "no node %zd: there are %zd", node, length(all));
        } else {
            cursors = item(all, node);
        }
    } else if (PyList_Check(all)) {
        cursors = draft_item(all, node);
    } else {
        PyErr_Format(PyExc_TypeError, "the cursors of nodes are a list, got %.200s", Py_TYPE(all)->tp_name);
    }
    if (cursors != NULL && !PyList_Check(cursors)) {
        PyErr_Format(PyExc_TypeError, "cursors are a list, got %.200s", Py_TYPE(cursors)->tp_name);
        Py_CLEAR(cursors);
    }
    return cursors;
}

int
draft_add_cursors(PyObject *all, PyObject *cursors, PyTypeObject *groups)
{
    PyObject *list = Py_TYPE(all) == groups ? ((Groups *)all)->added : all;
    if (!PyList_Check(list)) {
        PyErr_Format(PyExc_TypeError, "the cursors of nodes are a list, got %.200s", Py_TYPE(all)->tp_name);
        return -1;
    }
    return PyList_Append(list, cursors);
}

int
draft_first_situation(PyObject *all, Py_ssize_t node, PyTypeObject *groups, int64_t *state)
{
    if (Py_TYPE(all) == groups && node >= 0 && node < ((Groups *)all)->count) {
        const Group group = ((Groups *)all)->groups[node];
        *state = group.count > 0 ? ((Groups *)all)->cursors[group.first].state : 0;
        return group.count > 0;
    }
    PyObject *cursors = draft_cursors_of(all, node, groups), *first = NULL;
    int result = -1;
    if (cursors != NULL && PyList_GET_SIZE(cursors) == 0) {
        result = 0;
    } else if (cursors != NULL) {
        first = draft_item(cursors, 0);
        if (first != NULL && PyTuple_Check(first) && PyTuple_GET_SIZE(first) == 2) {
            result = draft_integer(PyTuple_GET_ITEM(first, 1), state) < 0 ? -1 : 1;
        } else if (first != NULL) {
            PyErr_Format(PyExc_TypeError, "a cursor is a position and a situation, got %R", first);
        }
    }
    Py_XDECREF(cursors);
    Py_XDECREF(first);
    return result;
}

/* The module `_growth`: arguments from Python, lists back. See draft.h. */

#include "draft.h"

#define VERSION 2 /* of what the functions take and return: compiled.py knows the same */

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

/* The integers of `list`, the table `name`, from 0 to below `end`, in memory of our own; NULL with an exception. */
static int *
integers(const char *name, PyObject *list, Py_ssize_t count, int64_t end)
{
    if (PyList_GET_SIZE(list) != count) {
        PyErr_Format(PyExc_ValueError, "the tables do not fit each other: %s holds %zd numbers instead of %zd", name,
                     PyList_GET_SIZE(list), count);
        return NULL;
    }
    int *numbers = PyMem_New(int, count);
    if (numbers == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t each;
        if (get_integer(list, i, &each) < 0) {
            PyMem_Free(numbers);
            return NULL;
        }
        if (each < 0 || each >= end) {
            PyErr_Format(PyExc_ValueError, "table %s holds %lld; from 0 to %lld are known", name, (long long)each,
                         (long long)end - 1);
            PyMem_Free(numbers);
            return NULL;
        }
        numbers[i] = (int)each;
    }
    return numbers;
}

/* The integers of a short table, in memory that is there. */
static int
copy_integers(const char *name, PyObject *list, Py_ssize_t count, int64_t end, int *copied)
{
    int *numbers = integers(name, list, count, end);
    if (numbers == NULL) {
        return -1;
    }
    memcpy(copied, numbers, sizeof(int) * (size_t)count);
    PyMem_Free(numbers);
    return 0;
}

static int
largest(const int *numbers, Py_ssize_t count)
{
    int found = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        found = numbers[i] > found ? numbers[i] : found;
    }
    return found;
}

/* Whether the constants are such that every sum and index made of them is in range. */
static int
check_constants(const Tables *tables)
{
    const double numbers[] = {
        tables->least_score, tables->sure,        tables->later,  tables->later_copy,
        tables->open_root,   tables->open_deeper, tables->fewest, tables->least_share,
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        if (!(numbers[i] > 0.0 && numbers[i] < INFINITY)) {
            return draft_wrong_number("a constant is %R; all are above 0", numbers[i]);
        }
    }
    if (tables->orders < 1 || tables->orders > ORDERS || tables->key_bits < 1 ||
        tables->key_bits > KEY_BITS / tables->orders) {
        PyErr_Format(PyExc_ValueError, "%d tokens of %d bits make no key; at most %d, of together at most %d, do",
                     tables->orders, tables->key_bits, ORDERS, KEY_BITS);
        return -1;
    }
    if (tables->gaps < 1 || tables->gaps >= TABLE_END || tables->written < 0 || tables->written >= KINDS ||
        tables->join < 1 || tables->keep < 1 || tables->most_words < 1) {
        PyErr_Format(PyExc_ValueError,
                     "gaps %d, join %zd, keep %zd and most_words %zd are counts from 1, and written %d is a kind below %d",
                     tables->gaps, tables->join, tables->keep, tables->most_words, tables->written, KINDS);
        return -1;
    }
    return 0;
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
    const Py_ssize_t states = tables->states = PyList_GET_SIZE(following), companies = PyList_GET_SIZE(company);
    if (check_constants(tables) < 0) {
        goto failed;
    }
    if (states >= TABLE_END || companies < 1 || companies > COMPANIES) {
        PyErr_Format(PyExc_ValueError, "the tables do not fit: %zd situations and %zd companies; below %d, and 1 to %d",
                     states, companies, TABLE_END, COMPANIES);
        goto failed;
    }
    tables->companies = (int)companies;
    if ((tables->following = integers("following", following, states, states)) == NULL ||
        (tables->length = integers("length", length, states, MATCH_LENGTHS)) == NULL ||
        (tables->crowd_row = integers("crowd_row", crowd_row, states, TABLE_END)) == NULL ||
        copy_integers("company", company, companies, TABLE_END, tables->company) < 0 ||
        copy_integers("joined", joined, KINDS, states, tables->joined) < 0) {
        goto failed;
    }
    tables->crowds = largest(tables->crowd_row, states) + largest(tables->company, companies) + tables->gaps;
    return capsule;
failed:
    Py_DECREF(capsule);
    return NULL;
}

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

/* Takes the arrays of an NGrams: (contexts, starts, stops, tokens, shares, left). */
static int
take_ngrams(Draft *draft, PyObject *arrays)
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
        PyErr_Format(PyExc_ValueError, "no cursor: %R; there are %zd positions and %zd situations", pair, draft->end,
                     draft->tables->states);
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
        lists[i] = PyList_New(draft->nodes.count);
        failed |= lists[i] == NULL;
    }
    for (Py_ssize_t i = 0; i < draft->nodes.count && !failed; i++) {
        const Node *node = &draft->nodes.items[i];
        PyObject *items[5] = {
            PyLong_FromLongLong(node->token),   PyLong_FromSsize_t(node->parent),  PyFloat_FromDouble(node->score),
            PyLong_FromSsize_t(node->position), cursor_list(draft, node->group),
        };
        for (int j = 0; j < 5; j++) {
            failed |= items[j] == NULL;
            PyList_SET_ITEM(lists[j], i, items[j]);
        }
    }
    PyObject *all = failed ? NULL : PyTuple_Pack(5, lists[0], lists[1], lists[2], lists[3], lists[4]);
    for (int i = 0; i < 5; i++) {
        Py_XDECREF(lists[i]);
    }
    return all;
}

static void
free_draft(Draft *draft)
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
             "grow(tables, text, kinds, places, written, cursors, at_root, deeper, crowds, none_at_root, "
             "none_deeper, language, common_weights, common, max_nodes, costs, ngrams)\n\n"
             "The fields of growth.Grown. `ngrams`: NGrams.arrays, or None.");

/* Whether the numbers and lists fit each other, in the words of growth.py where it says the same. */
static int
check_arguments(const Draft *draft, Py_ssize_t max_nodes)
{
    const double none[] = {draft->none_at_root, draft->none_deeper};
    for (int i = 0; i < 2; i++) {
        if (!(none[i] > 0.0 && none[i] < INFINITY)) {
            return draft_wrong_number("the weight of none being right is %R; it is a number above 0", none[i]);
        }
    }
    if (!(draft->language >= 0.0 && draft->language < INFINITY)) {
        return draft_wrong_number("the factor of the language is %R; it is a number from 0", draft->language);
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
    if (PySequence_Fast_GET_SIZE(draft->crowds) < draft->tables->crowds) {
        PyErr_Format(PyExc_ValueError, "%zd crowds; the tables need %d", PySequence_Fast_GET_SIZE(draft->crowds),
                     draft->tables->crowds);
        return -1;
    }
    return 0;
}

static PyObject *
grow(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *cursors, *common_weights, *common, *costs, *ngrams, *result = NULL, *lists = NULL;
    Py_ssize_t max_nodes;
    Draft draft = {0};
    Roots roots = {NULL, NULL, 0.0};
    Group group;

    if (!PyArg_ParseTuple(args, "OO!O!O!O!O!O!O!OdddO!O!nOO", &capsule, &PyList_Type, &draft.text, &PyList_Type,
                          &draft.kinds, &PyDict_Type, &draft.places, &PyDict_Type, &draft.written, &PyList_Type,
                          &cursors, &PyList_Type, &draft.at_root, &PyList_Type, &draft.deeper, &draft.crowds,
                          &draft.none_at_root, &draft.none_deeper, &draft.language, &PyList_Type, &common_weights,
                          &PyList_Type, &common, &max_nodes, &costs, &ngrams)) {
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
    if (check_arguments(&draft, max_nodes) < 0 || (ngrams != Py_None && take_ngrams(&draft, ngrams) < 0)) {
        goto done;
    }
    roots.offered = PySet_New(NULL);
    if (roots.offered == NULL || take_cursors(&draft, cursors, &group) < 0 ||
        draft_push_roots(&draft, group, common_weights, common, &roots) < 0 ||
        draft_grow(&draft, max_nodes, costs) < 0) {
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

/* Constants that Python passes once: checked here, and trusted afterwards. See draft.h. */

#include "draft.h"

static void
free_tables(PyObject *capsule)
{
    Tables *tables = PyCapsule_GetPointer(capsule, "copyspec.Tables");
    if (tables != NULL) {
        PyMem_Free(tables->following);
        PyMem_Free(tables->length);
        PyMem_Free(tables->crowd_row);
        PyMem_Free(tables->after_substitute);
        PyMem_Free(tables);
    }
}

/* The integers of `list`, the table `name`, from 0 to below `end`, in new memory; NULL with an exception. */
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

/* The integers of a short table, in memory of the caller. */
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
        tables->min_score,
        tables->sure_weight,
        tables->child_priority,
        tables->copy_priority,
        tables->ngram_min_miss_prob_root,
        tables->ngram_min_miss_prob,
        tables->min_ngram_score,
        tables->min_share,
        tables->predicted_priority,
        tables->table_min_miss_prob,
        tables->miss_prob_floor,
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
        tables->max_joining < 1 || tables->max_cursors < 1 || tables->max_continuations < 1 || tables->columns < 1 ||
        tables->columns >= TABLE_END) {
        PyErr_Format(PyExc_ValueError,
                     "gaps %d, max_joining %zd, max_cursors %zd, max_continuations %zd and columns %d are counts from 1, "
                     "written %d is a kind below %d",
                     tables->gaps, tables->max_joining, tables->max_cursors, tables->max_continuations,
                     tables->columns, tables->written, KINDS);
        return -1;
    }
    return 0;
}

PyObject *
draft_make_tables(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *following, *length, *crowd_row, *company, *after, *joined;
    Tables *tables = PyMem_Calloc(1, sizeof(Tables));
    if (tables == NULL) {
        return PyErr_NoMemory();
    }
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!iinniinddddddddiddd", &PyList_Type, &following, &PyList_Type, &length,
                          &PyList_Type, &crowd_row, &PyList_Type, &company, &PyList_Type, &after, &PyList_Type,
                          &joined, &tables->gaps,
                          &tables->written, &tables->max_joining, &tables->max_cursors, &tables->key_bits,
                          &tables->orders, &tables->max_continuations, &tables->min_score, &tables->sure_weight,
                          &tables->child_priority, &tables->copy_priority, &tables->ngram_min_miss_prob_root,
                          &tables->ngram_min_miss_prob, &tables->min_ngram_score, &tables->min_share,
                          &tables->columns, &tables->predicted_priority, &tables->table_min_miss_prob,
                          &tables->miss_prob_floor)) {
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
        (tables->after_substitute = integers("after_substitute", after, states, states)) == NULL ||
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

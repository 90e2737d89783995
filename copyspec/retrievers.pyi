from retrievers import *

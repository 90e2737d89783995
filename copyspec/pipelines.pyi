from pipelines import *

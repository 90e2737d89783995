"""copyspec on Ray: a pool of actors corrects or answers columns of Parquet, JSONL or text files, with resume.

Ray is imported when a run starts. `CorrectColumn` and `AnswerColumn` work on batches of columns without Ray: they also
fit `Dataset.map_batches`, Spark's `mapInPandas` and a plain loop.
"""

from copyspec.integrations.ray.columns import AnswerColumn, CorrectColumn
from copyspec.integrations.ray.runs import RunReport, run

__all__ = ["AnswerColumn", "CorrectColumn", "RunReport", "run"]

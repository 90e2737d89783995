"""copyspec on Ray: columns of Parquet, JSONL or text corrected or answered by a pool of actors, with resume.

Ray is imported when a run starts. `CorrectColumn` and `AnswerColumn` work on batches of columns, and need no Ray: they
fit `Dataset.map_batches`, Spark's `mapInPandas` and a plain loop alike.
"""

from copyspec.integrations.ray.columns import AnswerColumn, CorrectColumn
from copyspec.integrations.ray.runs import RunReport, run

__all__ = ["AnswerColumn", "CorrectColumn", "RunReport", "run"]

"""The last steps as people see them.

Timeline (records of steps) -> lanes, one a sequence -> chart (text) or Gantt chart (SVG)
"""

from mmserve.sched.show.chart import draw_steps
from mmserve.sched.show.gantt import draw_gantt
from mmserve.sched.show.timeline import Timeline

__all__ = ["Timeline", "draw_gantt", "draw_steps"]

"""nbgrader's settings for this course: it reads this file when it is started here. See docs/instructors.md."""

from pagedkv_lab.course.classroom.grading import configure

configure(get_config())  # noqa: F821 (nbgrader defines it)

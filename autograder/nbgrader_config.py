"""nbgrader's configuration for this course: which folder plays which part.

nbgrader looks for this file beside the working directory or on JUPYTER_CONFIG_PATH only;
`python -m autograder` sets both the path and PATH itself. To open formgrader by hand, see
autograder/README.md.
"""

c = get_config()  # noqa: F821  (nbgrader provides it)

c.CourseDirectory.course_id = "policy_gradients"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "homework"
c.CourseDirectory.submitted_directory = "submissions"
c.CourseDirectory.autograded_directory = "autograded"
c.CourseDirectory.feedback_directory = "feedback"

# What stands in a released notebook where the solution stood.
c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE\nraise NotImplementedError"}
c.ClearSolutions.text_stub = "YOUR ANSWER HERE"

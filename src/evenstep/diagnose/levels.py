"""Thresholds shared by all failure modes."""

SMALLEST_SHARE = 0.01  # of the step time: smaller findings are left out
NAMED = 0.05  # of the step time: larger findings make the headline
MOST = 0.5  # more than half: the usual state, the larger part
DOMINANT = 0.8  # of a whole: the rest does not count
MINOR = 0.1  # of the largest, or of all: smaller parts are not named and may be chance
NEARLY_ALL = 1 - MINOR
SIGMAS = 5.0  # standard deviations by which a single value stands out of noise
ERRORS = 4.0  # standard errors by which a mean or a median does
CLEARLY = 3.0  # of either, by which two levels differ
LOW = 0.1  # quantile of durations without any delay
UNDISTURBED = 0.25  # quantile of transfers that pauses of the collector do not reach
SURE = 0.001  # p-value below which a trend is no chance
CHANGED = 1.25  # ratio of two levels that is worth a mention
FEW_STEPS = 30  # with fewer, shares and intervals are rough
FEWEST = 4  # values that have a level and a spread
SEVERAL = 3  # of these, one can differ from the others
LISTED = 8  # entries of a list for people
ROUND_STEPS = 8  # of local SGD, where it is offered

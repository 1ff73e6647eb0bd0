"""Operations that users start, and that outlive a process: jobs, redrives, bulk changes, schedules."""

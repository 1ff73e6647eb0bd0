"""Answers from the tables: reports and their pages, storms, other policies tried out, and whether anything is lost."""

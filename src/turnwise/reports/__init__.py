"""From numbers to tables, records, pictures and pages."""

"""Tables, figures, findings and the page of a report; they lay out what others computed."""

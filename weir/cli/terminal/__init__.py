"""The parts that all commands share: options, logs, output, and errors as exit statuses."""

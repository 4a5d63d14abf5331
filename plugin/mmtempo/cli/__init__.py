"""Parts that the command-line tools share: flags, configs, runners, messages and exit codes."""

"""The exit statuses of a service whose program systemd could not start. Source: systemd.exec(5), "Process Exit Codes"."""

from __future__ import annotations

STEPS = {
    200: ("CHDIR", "change to the working directory"),
    201: ("NICE", "set the scheduling priority"),
    202: ("FDS", "pass the file descriptors"),
    203: ("EXEC", "execute the program: it is missing, or not executable"),
    204: ("MEMORY", "start the program: there is not enough memory"),
    205: ("LIMITS", "set the resource limits"),
    206: ("OOM_ADJUST", "set the priority for the OOM killer (OOMScoreAdjust=)"),
    207: ("SIGNAL_MASK", "set the signal mask"),
    208: ("STDIN", "set up standard input"),
    209: ("STDOUT", "set up standard output"),
    210: ("CHROOT", "change the root directory"),
    211: ("IOPRIO", "set the I/O priority"),
    212: ("TIMERSLACK", "set the timer slack"),
    213: ("SECUREBITS", "set the secure bits"),
    214: ("SETSCHEDULER", "set the CPU scheduling policy"),
    215: ("CPUAFFINITY", "set the CPU affinity"),
    216: ("GROUP", "determine or change the groups"),
    217: ("USER", "determine or change the user"),
    218: ("CAPABILITIES", "set the capabilities"),
    219: ("CGROUP", "set up the control group"),
    220: ("SETSID", "create a session of processes"),
    221: ("CONFIRM", "start the program: the start was cancelled by the user"),
    222: ("STDERR", "set up standard error"),
    224: ("PAM", "set up the PAM session"),
    225: ("NETWORK", "set up the network namespace"),
    226: ("NAMESPACE", "set up the namespaces, as in a container that does not allow nesting"),
    227: ("NO_NEW_PRIVILEGES", "disable new privileges"),
    228: ("SECCOMP", "set the filters of system calls"),
    229: ("SELINUX_CONTEXT", "set the SELinux context"),
    230: ("PERSONALITY", "set the execution domain"),
    231: ("APPARMOR", "change the AppArmor profile"),
    232: ("ADDRESS_FAMILIES", "restrict the address families"),
    233: ("RUNTIME_DIRECTORY", "set up the runtime directory"),
    235: ("CHOWN", "change the owner of the socket"),
    236: ("SMACK_PROCESS_LABEL", "set the SMACK label"),
    237: ("KEYRING", "set up the kernel keyring"),
    238: ("STATE_DIRECTORY", "set up the state directory"),
    239: ("CACHE_DIRECTORY", "set up the cache directory"),
    240: ("LOGS_DIRECTORY", "set up the log directory"),
    241: ("CONFIGURATION_DIRECTORY", "set up the configuration directory"),
    242: ("NUMA_POLICY", "set the NUMA memory policy"),
    243: ("CREDENTIALS", "set up the credentials"),
}
"""For each status: its name, and the step of the start that systemd could not do."""

NAMESPACE = 226


def named(status: str) -> str:
    """Return *status*, the property ExecMainStatus, with its name as systemctl(1) shows it, such as ``226/NAMESPACE``."""
    step = _step(status)
    return f"{status}/{step[0]}" if step else status


def failed_step(status: str) -> str:
    """Return in one line which step of the start systemd could not do; empty if *status* is one of the program itself."""
    step = _step(status)
    return f"systemd could not {step[1]} ({named(status)})" if step else ""


def _step(status: str) -> tuple[str, str] | None:
    """Return the entry of *status*, None without one."""
    return STEPS.get(int(status)) if status.isascii() and status.isdecimal() else None

// Package watchdog is the interface to Linux's watchdog devices (Documentation/watchdog/watchdog-api.rst,
// drivers/watchdog/watchdog_dev.c): hardware that resets the machine unless it is fed in time.
//
// Opening a device arms it. Closing it without disarming leaves it armed and feeds it once. A device has one opener at
// a time.
package watchdog

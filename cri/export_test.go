package cri

import "time"

// SetCallTimeout shortens CallTimeout for tests of calls that hang.
func (c *Client) SetCallTimeout(d time.Duration) { c.callTimeout = d }

package control

// SelfFencing is the state of the watchdog of a node that fences itself.
type SelfFencing struct {
	Device string `json:"device"`
	// DryRun is set if the device is not opened.
	DryRun bool `json:"dryRun,omitempty"`
	// Armed is set while the watchdog runs. Identity, TimeoutSeconds and NoWayOut are its own, and Failure is why it
	// could not be opened.
	Armed          bool    `json:"armed"`
	Identity       string  `json:"identity,omitempty"`
	TimeoutSeconds float64 `json:"timeoutSeconds,omitempty"`
	NoWayOut       bool    `json:"nowayout,omitempty"`
	Failure        string  `json:"failure,omitempty"`
	// FedSeconds is the time since the watchdog was fed; null if it is not armed. AcceptedSeconds is that since the
	// last advert that the API server has accepted was made; null if there was none.
	FedSeconds      *float64 `json:"fedSeconds"`
	AcceptedSeconds *float64 `json:"acceptedSeconds"`
	// FedBecause is why it is fed: advert, peers or nothing; empty if it is not armed. ResetSeconds is the time until
	// the machine is reset unless it is fed before; null if it is not armed.
	FedBecause   string   `json:"fedBecause,omitempty"`
	ResetSeconds *float64 `json:"resetSeconds"`
	// Peers are the other nodes; absent if they are not asked.
	Peers *SelfFencingPeers `json:"peers,omitempty"`
}

// SelfFencingPeers is what is known of the other nodes.
type SelfFencingPeers struct {
	// CannotReach are the nodes, this one included, that say that they cannot reach the API server; 0 while they are
	// not asked. Nodes are all nodes of the list, and ListAgeSeconds is its age; null if there is none.
	CannotReach    int      `json:"cannotReach"`
	Nodes          int      `json:"nodes"`
	ListAgeSeconds *float64 `json:"listAgeSeconds"`
}

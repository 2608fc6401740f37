package fencing

import "testing"

const (
	stepDir       = "agent/fence"
	planDir       = "agent/fence/plan"
	ipmiDir       = "agent/fence/device/ipmi"
	redfishDir    = "agent/fence/device/redfish"
	agentDir      = "agent/fence/device/clusterlabs"
	executeDir    = "agent/fence/execute"
	kdumpDir      = "agent/fence/kdump"
	controllerDir = "agent/controller"
	propertiesDir = "agent/properties"
	clusterDir    = "tests/fencing"
	scriptDir     = "tests/script"
	selffenceDir  = "agent/selffence"
	peersDir      = "agent/selffence/peers"
)

func of(dir string, names ...string) evidence { return evidence{dir, names} }

// failures are the failures and the bad input that fencing must answer, and the tests that show the answer.
var failures = []demand{
	// The BMC and the machine.
	{"BMC is stuck", []evidence{of(ipmiDir, "TestAway"), of(redfishDir, "TestFrozen"),
		of(stepDir, "TestTimelines/bmc silent: nothing is sent"), of(clusterDir, "TestFenceConfirmed")}},
	{"BMC ignores commands", []evidence{of(ipmiDir, "TestIgnore"), of(redfishDir, "TestIgnored"), of(stepDir, "TestTimelines/bmc ignores commands"),
		of(clusterDir, "TestFenceIgnored")}},
	{"BMC refuses", []evidence{of(ipmiDir, "TestRefuse", "TestControlAnswers"), of(redfishDir, "TestRefusal"), of(agentDir, "TestFenceAgent")}},
	{"BMC answers after 3 s and 8 s", []evidence{of(ipmiDir, "TestSlow"), of(redfishDir, "TestSlow")}},
	{"BMC is frozen, and thaws later", []evidence{of(ipmiDir, "TestFrozen", "TestLateOff"), of(redfishDir, "TestFrozen"),
		of(stepDir, "TestTimelines/silent after the identity: late off is proven after GaveUp"), of(controllerDir, "TestLateCommand")}},
	{"wrong password", []evidence{of(ipmiDir, "TestWrongPassword"), of(redfishDir, "TestWrongPassword"), of(agentDir, "TestFenceAgent")}},
	{"wrong certificate", []evidence{of(redfishDir, "TestCertificate")}},
	{"wrong UUID, and none", []evidence{of(stepDir, "TestTimelines/another machine", "TestTimelines/no uuid", "TestSameMachine"),
		of(controllerDir, "TestSharedUUID")}},
	{"out of sessions", []evidence{of(ipmiDir, "TestSessions", "TestOneSession", "TestNoFreeSession"), of(redfishDir, "TestNoFreeSession", "TestSessionsEnd"),
		of(stepDir, "TestGaveUpSaysWhy"), of(clusterDir, "TestFenceNoFreeSession")}},
	{"machine comes back on by power policy", []evidence{of(redfishDir, "TestReturns"), of(stepDir, "TestTimelines/on while releasing"),
		of(stepDir, "TestFailureTimelines/on by power policy before the proof")}},
	{"power flaps", []evidence{of(stepDir, "TestRandomFences")}},
	{"one of two power supplies is named", []evidence{of(stepDir, "TestDrillTimelines/two power supplies", "TestTimelines/another device reads on",
		"TestTimelines/one of two plugs reads on", "TestTimelines/Lease renewed after the proof")}},
	{"BMC and network of the node gone together, back after GaveUp", []evidence{
		of(stepDir, "TestTimelines/answers again after GaveUp: one new attempt", "TestFailureTimelines/BMC and node are back after GaveUp")}},
	{"button pressed in Releasing", []evidence{of(stepDir, "TestTimelines/on while releasing"), of(controllerDir, "TestTaintIsTakenBackUnsaved")}},
	{"button pressed in Released", []evidence{of(stepDir, "TestFailureTimelines/button pressed in Released"),
		of(stepDir, "TestStorageTimelines/clean-pods while the machine runs again")}},
	{"device of isolation is dead", []evidence{of(stepDir, "TestTimelines/isolation fails"),
		of(stepDir, "TestStorageTimelines/the switch is silent, and off again")}},
	{"Ready again after its port was switched off", []evidence{of(stepDir, "TestTimelines/isolation helps: Ready again"),
		of(stepDir, "TestStorageTimelines/Ready again before the release", "TestStorageTimelines/Ready again without a reboot, later with one")}},
	{"a VolumeAttachment that never goes", []evidence{of(stepDir, "TestTimelines/release stuck", "TestStuckNames")}},
	{"watchdog disarmed in an outage of the API server", []evidence{of(selffenceDir, "TestBoundHolds", "TestArmAndWithdraw"),
		of(controllerDir, "TestMajority", "TestObserveAdvert", "TestAdvertAfterRestore")}},
	{"zones of one node", []evidence{of(stepDir, "TestStorm/n/a r/b", "TestStorm/n/a 9*r/b")}},
	{"the leader's own node", []evidence{of(controllerDir, "TestOwnNode", "TestGateLists", "TestWithheld")}},

	// The API server.
	{"API server is away", []evidence{of(controllerDir, "TestServerFaults/away", "TestServerFaults/no connection", "TestUnreadable"),
		of(clusterDir, "TestFenceSlowServer")}},
	{"API server answers 409", []evidence{of(controllerDir, "TestServerFaults/409", "TestConflictKeepsResults", "TestManyConflicts", "TestTaintConflict")}},
	{"API server answers 429", []evidence{of(controllerDir, "TestServerFaults/429")}},
	{"API server answers 403 to one verb", []evidence{of(controllerDir, "TestServerForbids", "TestRights")}},
	{"API server writes without an answer, or late", []evidence{
		of(controllerDir, "TestServerFaults/writes, but times out", "TestServerFaults/writes late", "TestRecordSurvivesFailedCreate")}},
	{"API server answers after 2 s and 10 s", []evidence{of(controllerDir, "TestSlowServer", "TestPrerequisitesSlowServer"),
		of(clusterDir, "TestFenceSlowServer")}},
	{"watch is stale by a minute", []evidence{of(controllerDir, "TestLateWatch", "TestFencedAfterLastRenewal")}},
	{"clock is off", []evidence{of(stepDir, "TestReadingsFromTheFuture", "TestOnAfterClockStep", "TestReturnWithClockBehind", "TestRateClock"),
		of(controllerDir, "TestClockOff")}},
	{"clock is set", []evidence{of(stepDir, "TestClockSetBack", "TestReadingsAfterClockStep", "TestStorageReadingsAfterClockStep", "TestRandomFences"),
		of(controllerDir, "TestClockSet")}},

	// Fence agents.
	{"agent is missing", []evidence{of(agentDir, "TestFind/fence_missing"), of(planDir, "TestFenceAgentProblems/not installed")}},
	{"agent is not executable", []evidence{of(agentDir, "TestFind/fence_plain")}},
	{"agent hangs, or ignores SIGTERM", []evidence{of(agentDir, "TestDeadline/hangs", "TestDeadline/ignores SIGTERM")}},
	{"agent forks", []evidence{of(agentDir, "TestChildSurvives", "TestChildLeavesGroup")}},
	{"agent prints 100 MB", []evidence{of(agentDir, "TestOutput")}},
	{"agent has no status action", []evidence{of(planDir, "TestFenceAgentProblems/no status")}},
	{"agent exits with 2 on off", []evidence{of(agentDir, "TestControl/exit status 2", "TestStatus/usage error")}},

	// The configuration.
	{"method or template is missing", []evidence{of(planDir, "TestProblems/missing objects")}},
	{"node_name unlike the name", []evidence{of(planDir, "TestProblems/node of another name"), of(scriptDir, "fence.txtar")}},
	{"CRLF, byte order mark and \"=\" in values", []evidence{of(propertiesDir, "TestParse", "FuzzParse"), of(planDir, "TestPlan", "TestResolve")}},
	{"duplicate keys", []evidence{of(planDir, "TestProblems/properties", "TestProblems/both names")}},
	{"unknown keys", []evidence{of(planDir, "TestProblems/parameters", "TestFenceAgentProblems/unknown and refused parameters")}},
	{"a secret in both", []evidence{of(planDir, "TestProblems/keys of Secrets", "TestProblems/overrides a Secret")}},
	{"on before off", []evidence{of(planDir, "TestProblems/on before off")}},
	{"reboot and cycle", []evidence{of(planDir, "TestProblems/actions", "TestFenceAgentProblems/values")}},
	{"plug of another node", []evidence{of(planDir, "TestFenceAgentProblems/the same plug", "TestProblems/a shared device"),
		of(stepDir, "TestDrillTimelines/another machine's plug")}},
	{"ConfigMap of 1 MiB", []evidence{of(planDir, "TestProblems/too large"), of(propertiesDir, "TestParse"),
		of(controllerDir, "TestLargeConfigMap")}},
	{"names of nodes with dots and 253 characters", []evidence{of(planDir, "TestProblems/long names"),
		of("agent/fence/nodefence", "TestObjectName"), of(controllerDir, "TestLongNodeLease", "TestNodeNames"), of(stepDir, "TestJobName"), of(scriptDir, "fence.txtar")}},
	{"a bad ConfigMap in the middle of a fence", []evidence{
		of(controllerDir, "TestChangeAtAnyPoint/configuration: deleted", "TestChangeAtAnyPoint/configuration: another device")}},

	// Jobs.
	{"Job starts late", []evidence{of(executeDir, "TestRun"), of(controllerDir, "TestJobNoLongerWanted", "TestJobRequest", "TestJobDeadlines")}},
	{"image of a Job cannot be pulled", []evidence{of(controllerDir, "TestJobStatus/image cannot be pulled", "TestJobOutcomes/no pod")}},
	{"pod of a Job is evicted", []evidence{of(controllerDir, "TestJobStatus/evicted")}},
	{"pod of a Job starts twice", []evidence{of(controllerDir, "TestJobStatus/two pods", "TestJobStatus/container started twice")}},
	{"node of a Job dies", []evidence{of(controllerDir, "TestAvoid", "TestJobOutcomes/no pod"), of(clusterDir, "TestJobAdopted")}},

	// Datagrams of dump kernels.
	{"kdump datagrams are forged", []evidence{of(kdumpDir, "TestListener", "TestSessions"), of(stepDir, "TestKdumpReleaseRules", "TestKdumpReleaseTimelines")}},
	{"kdump datagrams are truncated", []evidence{of(kdumpDir, "TestParse/cut off", "FuzzParse")}},
	{"kdump datagrams flood", []evidence{of(kdumpDir, "TestListenerFlooded", "TestSessionsFlooded", "TestReads")}},

	// Secrets.
	{"secret in an error of a device", []evidence{of(ipmiDir, "TestWrongPassword"), of(redfishDir, "TestSecrets"), of(agentDir, "TestRedaction", "TestRedactionCut")}},
	{"secret in arguments and environment", []evidence{of(agentDir, "TestProc", "TestInput"),
		of(clusterDir, "TestFenceByJobs", "TestFence", "TestFenceSteps")}},
	{"secret in logs, events and objects", []evidence{of(clusterDir, "TestFenceByJobs", "TestFence", "TestFenceSteps"),
		of(controllerDir, "TestStrippedSecret")}},
	{"secret in what evictctl prints", []evidence{of(scriptDir, "fence.txtar"), of(planDir, "TestProblems/plain password")}},

	// What others send.
	{"fuzz targets of all parsers", []evidence{of(propertiesDir, "FuzzParse"), of(planDir, "FuzzParseMetadata"), of(kdumpDir, "FuzzParse"),
		of(redfishDir, "FuzzAnswer"), of(ipmiDir, "FuzzAccept"), of(executeDir, "FuzzRequest", "FuzzReport"), of(selffenceDir, "FuzzParseAdvert")}},
}

// TestFailures: each failure has its tests.
func TestFailures(t *testing.T) { checkTests(t, failures) }

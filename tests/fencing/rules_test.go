package fencing

import "testing"

// rules are the rules of fencing that must hold in every flow, and the tests that check them.
var rules = []demand{
	// What proves that a machine is off.
	{"success of an act is no proof", []evidence{of(stepDir, "TestRandomFences", "TestNotReleased"), of(controllerDir, "TestSeededFaults", "TestNoReleaseWithoutProof")}},
	{"a reading that began before the last act ended is no proof", []evidence{of(stepDir, "TestRandomFences", "TestProofClauses")}},
	{"act and readings have sessions of their own, one at a time", []evidence{of(controllerDir, "TestEachUseOpens", "TestOneActInFlight")}},
	{"each plug of a level is proven off", []evidence{of(stepDir, "TestRandomFences", "TestProofClauses")}},
	{"there are two readings, an interval apart", []evidence{of(stepDir, "TestTimelines", "TestProofClauses")}},
	{"a device that was away is read over a longer time", []evidence{of(stepDir, "TestTimelines")}},
	{"an unknown reading is not off", []evidence{of(stepDir, "TestNotReleased", "TestProofClauses")}},
	{"a fence agent's exit status alone is not off", []evidence{of(agentDir, "TestStatus")}},
	{"of a Redfish service only PowerState Off is off", []evidence{of(redfishDir, "TestReadings")}},
	{"a BMC that could not change the power is not off", []evidence{of(ipmiDir, "TestStatusAnswers")}},
	{"a reading with an error is not off", []evidence{of(controllerDir, "TestReadings")}},
	{"the Lease is unchanged for the grace period when the machine is proven off", []evidence{of(stepDir, "TestNotReleased")}},
	{"readings from before a change of the Lease are no proof", []evidence{of(stepDir, "TestProofClauses")}},
	{"a node that is Ready is not proven off", []evidence{of(stepDir, "TestProofClauses")}},
	{"a reading on makes all readings off before it void", []evidence{of(stepDir, "TestRandomFences")}},
	// The order of the release.
	{"nothing is released without a proof", []evidence{of(stepDir, "TestProofMissing", "TestForgedRelease"), of(controllerDir, "TestOrdersWithoutProof")}},
	{"the devices of the proof are read once more just before the release", []evidence{of(stepDir, "TestReleaseNeedsRecentReading", "TestNotReleased")}},
	{"a saved release without its taint begins with a reading", []evidence{of(stepDir, "TestForgedRelease")}},
	{"a device that reads on in the release ends it", []evidence{of(stepDir, "TestTimelines", "TestRandomFences"), of(controllerDir, "TestSeededFaults")}},
	{"the taint is taken back although the state could not be saved", []evidence{of(controllerDir, "TestTaintIsTakenBackUnsaved")}},
	{"pods are deleted only after the taint is set", []evidence{of(stepDir, "TestReleaseHeld")}},
	{"a release ends when pods and volumes are known to be gone", []evidence{of(stepDir, "TestReleaseEnds")}},
	{"no pod is deleted while the Lease is not known to be unchanged", []evidence{of(stepDir, "TestNoDeletionWithoutLease")}},
	{"pods that tolerate the taint stay", []evidence{of(stepDir, "TestReleaseHeld")}},
	{"pods are deleted by UID", []evidence{of(controllerDir, "TestDeletePods")}},
	{"VolumeAttachments are deleted by UID", []evidence{of(controllerDir, "TestDeleteAttachments")}},
	{"nothing is switched on before the release", []evidence{of(stepDir, "TestDrillTimelines", "TestTimelines")}},
	{"nothing is switched on while the Node is out of service, nor just after", []evidence{of(stepDir, "TestTimelines"), of(controllerDir, "TestCheckAct")}},
	{"the taint goes before the machine is switched on", []evidence{of(stepDir, "TestDrillTimelines", "TestTimelines")}},
	{"a Node is patched only if it has not changed, and foreign taints stay", []evidence{of(controllerDir, "TestPatchesTestVersion", "TestTaintPatch")}},
	{"taints of a fence that is gone are removed", []evidence{of(controllerDir, "TestSweep")}},
	{"of a node that is cut off from storage only the pods of that storage are released", []evidence{of(stepDir, "TestStorageTimelines", "TestStorageNotReleased")}},
	{"storage that was released is given back only after a reboot", []evidence{of(stepDir, "TestStorageTimelines"), of(controllerDir, "TestCheckAct")}},
	{"clean-pods deletes only pods of a node that was released", []evidence{of(stepDir, "TestMayClean"), of(controllerDir, "TestCheckAct")}},
	// What is read just before an act.
	{"a Ready Node stops an act", []evidence{of(controllerDir, "TestCheckAct")}},
	{"a renewed Lease, or none, stops an act", []evidence{of(controllerDir, "TestCheckAct", "TestNoActWithoutLease")}},
	{"a Node or NodeFence of another UID or resourceVersion stops an act", []evidence{of(controllerDir, "TestCheckAct")}},
	{"the Node is read from the API server, not from the cache", []evidence{of(controllerDir, "TestNodeIsReadLive")}},
	{"the last check comes just before the act", []evidence{of(controllerDir, "TestOutcomes", "TestActOnObjects")}},
	{"a state is saved only in place of the one that it was computed from", []evidence{of(controllerDir, "TestChangeAtAnyPoint")}},
	// Intents.
	{"there is one intent at a time", []evidence{of(stepDir, "TestRandomFences", "TestKdumpTimelines")}},
	{"an intent is saved before the act", []evidence{of(controllerDir, "TestConflictKeepsResults", "TestRestartAtEveryPoint")}},
	{"for a node one act is in flight", []evidence{of(controllerDir, "TestOneActInFlight")}},
	{"a device has one use at a time", []evidence{of(controllerDir, "TestDeviceUse", "TestOneActInFlight")}},
	{"an act does not begin after its deadline", []evidence{of(controllerDir, "TestOutcomes"), of(executeDir, "TestRunRefuses")}},
	{"an intent without an outcome is waited for, and its id is not used again", []evidence{of(stepDir, "TestRandomFences"), of(controllerDir, "TestRestartAtEveryPoint")}},
	{"a new controller waits for the whole time of a foreign intent", []evidence{of(stepDir, "TestTwoControllersWait", "TestTimelines"), of(controllerDir, "TestLateCommand")}},
	// Leadership.
	{"acts end when the leadership is lost, and are waited for", []evidence{of(controllerDir, "TestLeadershipLost")}},
	{"they end before another controller can be the leader", []evidence{of(controllerDir, "TestElectionCheck", "TestLeaseNotRenewed", "TestLeaseTaken", "TestLeaseGivenUp")}},
	{"the whole process group of an agent is killed", []evidence{of(agentDir, "TestDeadline", "TestProc")}},
	{"the Lease that remediators share is taken, and honoured", []evidence{of(controllerDir, "TestFenceTakesLease", "TestAcquire", "TestConfirmedHonoursLease", "TestCheckAct")}},
	{"nothing is fenced for a grace period after the start", []evidence{of(controllerDir, "TestSightings", "TestNoReleaseWithoutProof")}},
	{"nothing is fenced for a grace period after an outage of the API server", []evidence{of(controllerDir, "TestFailedList")}},
	// The gate.
	{"the policy is asked before each act and before the release", []evidence{of(stepDir, "TestReleaseHeld", "TestRandomFences"), of(controllerDir, "TestGateLists")}},
	{"pods are released for storage or a dump only while the gate is open", []evidence{of(stepDir, "TestStorageTimelines", "TestKdumpReleaseTimelines")}},
	{"percentages are rounded down, and unknown nodes are unhealthy", []evidence{of(stepDir, "TestStorm")}},
	{"nothing is fenced without a Ready node, or in a disrupted zone", []evidence{of(stepDir, "TestStorm", "TestZoneRate")}},
	{"concurrency, rate and cooldown are bounded", []evidence{of(stepDir, "TestStorm", "TestRate", "TestCooldown")}},
	{"control-plane nodes are fenced one at a time, with a majority", []evidence{of(stepDir, "TestStorm")}},
	{"the node of the controller is not fenced; a leader whose node is not Ready steps down", []evidence{of(controllerDir, "TestWithheld", "TestOwnNode")}},
	{"excluded and paused nodes are not fenced, until the mark expires", []evidence{of(controllerDir, "TestWithheld", "TestPausedUntil", "TestPausedNode")}},
	{"nodes that another remediator works on are not fenced", []evidence{of(controllerDir, "TestRemediatorTaint")}},
	// Identity.
	{"the Node of the fence is the one that it was created for", []evidence{of(stepDir, "TestRandomFences"), of(controllerDir, "TestCheckAct")}},
	{"the UUID of the device is compared before an act, and in each reading", []evidence{of(stepDir, "TestNotReleased", "TestProofClauses"), of(controllerDir, "TestOutcomes", "TestSeededFaults")}},
	{"a UUID is compared in three byte orders; one that identifies nothing does not match", []evidence{of(stepDir, "TestSameMachine")}},
	{"a UUID that two Nodes share identifies nothing", []evidence{of(controllerDir, "TestSharedUUID", "TestSharedUUIDLater")}},
	{"any device of the node that reads on contradicts the proof", []evidence{of(stepDir, "TestProofClauses"), of(controllerDir, "TestSeededFaults")}},
	{"a Lease that is renewed after the proof with the old boot ID stops the fence", []evidence{of(stepDir, "TestNotReleased"), of(controllerDir, "TestSeededFaults")}},
	{"a node that returns with its old boot ID stays in quarantine", []evidence{of(stepDir, "TestTimelines")}},
	{"a device that has no UUID is used after a drill of the node by it, or a person's word", []evidence{of(stepDir, "TestDrilled", "TestNotDrilled", "TestDrillShows"), of(controllerDir, "TestNotDrilledIsNotSwitched"), of(clusterDir, "TestDrillOfPlug")}},
	{"what a drill has shown is kept by what names the devices", []evidence{of(stepDir, "TestDrillDigest"), of(controllerDir, "TestDrillIsKept", "TestDrillOfLevel")}},
	// A node's own watchdog.
	{"a watchdog proves only while most nodes reach the API server", []evidence{of(controllerDir, "TestMajority", "TestPeersAfterPause", "TestBoundOfSlowPeers"), of(peersDir, "TestNoRunningMachineIsTaken")}},
	{"a node and a controller count by one list", []evidence{of(controllerDir, "TestPeersSince"), of(selffenceDir, "TestPeersList"), of(peersDir, "TestDeletedNodes")}},
	// Executors, secrets and rights.
	{"executors have no credentials, and the passwords in a file of their own", []evidence{of(controllerDir, "TestJobRequest")}},
	{"agents have no arguments and no environment of the controller", []evidence{of(agentDir, "TestInput", "TestProc")}},
	{"secrets are in no error and in no cache", []evidence{of(controllerDir, "TestStrippedSecret"), of(agentDir, "TestRedaction"), of(redfishDir, "TestSecrets")}},
	{"a Job does not run on the node that it fences", []evidence{of(controllerDir, "TestJobRequest", "TestJobStatus")}},
	{"agents are of one directory, with the name of one, and other users cannot write them", []evidence{of(agentDir, "TestFind")}},
	{"an agent is always given an action", []evidence{of(agentDir, "TestInput", "TestNewRefuses")}},
	{"reboot, cycle and reset are refused, and so is one plug of two nodes", []evidence{of(planDir, "TestProblems")}},
	{"configuration of other namespaces is not read", []evidence{of(controllerDir, "TestWatchedNamespaces")}},
	// The rest.
	{"what fails after the release does not undo it", []evidence{of(stepDir, "TestTimelines")}},
	{"a dry run does nothing, and says what it would do", []evidence{of(stepDir, "TestRandomFences", "TestMessages"), of(controllerDir, "TestOrdersWithoutProof", "TestDryRunTakesNoLease")}},
	{"devices are probed, with their UUID, and reported", []evidence{of(controllerDir, "TestProbes", "TestProbeFailure", "TestProbesMixedExecutors")}},
}

// TestRules: each rule has its tests.
func TestRules(t *testing.T) { checkTests(t, rules) }

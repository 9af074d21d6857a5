#!/bin/bash
<<body>>
